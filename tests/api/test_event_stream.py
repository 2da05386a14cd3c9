"""Streams yield the events of a callback, and end with the result."""

import asyncio
import threading

import pytest

from rksc_tot.api.solve import asolve, astream, stream
from rksc_tot.core.errors import ConfigError, VerifierError
from rksc_tot.strategies import BFS
from rksc_tot.verifiers import verifier
from tests.api.small_task import make_engine, make_task
from tests.patience import PATIENCE


def shape(events):
    return [(event.kind, event.model_dump(mode="json", exclude={"node"})) for event in events]


async def test_streams_yield_what_callbacks_see_and_end_with_the_result():
    seen = []
    result = await asolve(make_task(), 1, engine=make_engine(), on_event=seen.append)
    plain, other = stream(make_task(), 1, engine=make_engine()), astream(make_task(), 1, engine=make_engine())
    assert shape(list(plain)) == shape([event async for event in other]) == shape(seen)
    assert plain.result.tree.to_json() == other.result.tree.to_json() == result.tree.to_json()
    assert plain.result.answer == result.answer


def test_the_tree_does_not_change_while_a_loop_handles_an_event():
    engine = make_engine()
    run = iter(stream(make_task(), 1, engine=engine, strategy=BFS(b=1, k=1)))
    assert next(run).node.depth == 0
    depths = [event.node.depth for event in run if event.kind == "added"]
    assert depths == [1, 2]


def test_a_stream_has_no_result_before_its_end():
    run = stream(make_task(), 1, engine=make_engine())
    with pytest.raises(ConfigError, match="to the end"):
        _ = run.result


@pytest.mark.parametrize("strategy", ["bfs", "best_of_n", "self_consistency"])
@pytest.mark.parametrize("after", [1, 2, 5])
def test_leaving_a_stream_stops_the_search_with_the_best_so_far(after, strategy):
    engine = make_engine()
    task = make_task(max_thoughts=500, is_solution=lambda problem, path: False)
    run = stream(task, 1, engine=engine, strategy=strategy)
    for count, _ in enumerate(run, start=1):
        if count == after:
            break
    assert engine.handles == 0
    assert run.result.stopped == "cancelled"
    assert run.result.ledger.nodes < 20
    assert not [thread for thread in threading.enumerate() if thread.name == "rksc_tot.stream"]


async def test_leaving_an_async_stream_cancels_the_search_and_keeps_the_best_so_far():
    @verifier(timeout=None)
    async def wait(problem, path):
        await asyncio.sleep(PATIENCE)

    engine = make_engine()
    run = astream(make_task(), 1, engine=engine, verifier=wait)
    events = aiter(run)
    for _ in range(3):
        await anext(events)
    await events.aclose()
    assert engine.handles == 0
    assert len(run.result.path) == 1
    assert run.result.stopped == "cancelled"


async def test_a_closed_async_stream_has_the_best_so_far():
    engine = make_engine()
    run = astream(make_task(), 1, engine=engine)
    async for event in run:
        if event.kind == "added" and event.node.depth == 1:
            break
    for _ in range(2):
        await run.aclose()
    assert engine.handles == 0
    assert len(run.result.path) >= 1


async def test_streams_raise_the_error_of_the_search():
    bad = {"engine": make_engine(), "verifier": verifier(timeout=None)(lambda problem, path: None)}
    with pytest.raises(VerifierError):
        list(stream(make_task(), 1, **bad))
    with pytest.raises(VerifierError):
        _ = [event async for event in astream(make_task(), 1, **bad)]
