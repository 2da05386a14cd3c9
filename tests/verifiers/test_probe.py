"""The probe reads hidden states that generation has already computed."""

import pytest
import torch

from rksc_tot import MockEngine, load_engine, solve
from rksc_tot.core.errors import ConfigError, VerifierError
from rksc_tot.search import Search
from rksc_tot.strategies import BFS
from rksc_tot.tasks import load_task
from rksc_tot.tasks.game24.task import Game24
from rksc_tot.verifiers import Ensemble, LinearProbe, RandomScores
from rksc_tot.verifiers.probe import ProbeFit

PUZZLE = "4 5 6 10"


@pytest.fixture(scope="module")
def engine():
    with load_engine() as engine:
        yield engine


def a_search(engine, task=None):
    task = task or load_task("game24")
    return Search(task, task.validate(PUZZLE), engine, LinearProbe())


async def test_the_score_is_the_head_on_the_state_of_the_row_that_predicts_the_last_token(engine):
    search = a_search(engine)
    level = await search.expand([search.root], 6)
    level += await search.expand(level[:2], 3)
    await search.score(level)
    fit = LinearProbe().fit
    engine.forward.take("mask")
    for node in level:
        head, ids = fit.head(node.depth), torch.tensor([node._handle.tokens[:-1]])
        with torch.no_grad():
            states = engine.model(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
        assert head.layer < engine.layers  # the last state of transformers is after the norm
        state = states[head.layer][0, -1]
        expected = torch.sigmoid(state @ torch.tensor(head.weight) + head.offset)
        assert node.score == pytest.approx(float(expected), abs=1e-4)
    search.close()


def test_a_search_computes_no_token_for_the_scores_and_writes_the_same_thoughts_below_the_root(engine):
    results = {}
    for verifier in (LinearProbe(), RandomScores()):
        engine.clear()
        results[verifier.name] = solve("game24", PUZZLE, engine=engine, strategy=BFS(b=2, k=8), verifier=verifier)
    ledger, tree = results["probe"].ledger, results["probe"].tree
    assert (ledger.verifier_tokens, ledger.verifier_calls) == (0, 0)
    assert ledger.prefill_tokens == ledger.distinct_tokens
    first = [[node.text for node in each.tree if node.depth == 1] for each in results.values()]
    assert first[0] == first[1]
    assert all(0 <= node.score <= 1 for node in tree if node.score is not None)


async def test_a_thought_without_states_is_a_failure_with_the_reason(engine):
    class Shouted(Game24):
        def parse(self, problem, path, text):
            thought = super().parse(problem, path, text)
            return type(thought)(f"{thought.text} ok", thought.state)

    search = a_search(engine, Shouted())
    level = await search.expand([search.root], 4)
    with pytest.raises(VerifierError, match="changed by parse, or followed by an observation has no hidden state"):
        await search.score(level)
    search.close()


class OtherPrompt(Game24):
    def prompt(self, problem):
        return f"solve {' '.join(map(str, problem))}\n"


class OtherName(Game24):
    name = "other"


def test_a_probe_of_another_task_or_model_is_refused_before_the_search(engine, tmp_path):
    for task, says in ((OtherPrompt(), "the text of the prompt"), (OtherName(), "the task: 'game24', now 'other'")):
        with pytest.raises(ConfigError, match=f"the probe is for another model or task: {says}"):
            solve(task, PUZZLE, engine=engine, verifier="probe")
    weights = ProbeFit.load("embedded").model_copy(update={"weights": "0" * 64})
    weights.save(tmp_path / "probe.json")
    with pytest.raises(ConfigError, match=r"the model: .* with 8 layers, now"):
        solve("game24", PUZZLE, engine=engine, verifier=LinearProbe(file=str(tmp_path / "probe.json")))
    with pytest.raises(ConfigError, match="'mock' keeps no hidden states"):
        solve("game24", PUZZLE, engine=MockEngine(lambda text, rng: "x"), verifier="probe")


def test_a_changed_or_wrong_file_is_refused(tmp_path):
    file = tmp_path / "probe.json"
    LinearProbe().fit.save(file)
    file.write_text(file.read_text(encoding="utf-8").replace('"layer": ', '"layer": 1'), encoding="utf-8")
    with pytest.raises(ConfigError, match="probe"):
        _ = LinearProbe(file=str(file)).fit
    with pytest.raises(ConfigError, match="cannot be read"):
        _ = LinearProbe(file=str(tmp_path / "none.json")).fit


def test_a_probe_may_be_a_member_of_an_ensemble(engine):
    alone, among = (
        solve("game24", PUZZLE, engine=engine, strategy=BFS(b=2, k=3), verifier=verifier)
        for verifier in (LinearProbe(), Ensemble(members=["probe"]))
    )
    assert [node.score for node in among.tree] == [node.score for node in alone.tree]
