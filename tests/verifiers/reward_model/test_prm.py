import math

import pytest

from benchmarks.quality.prm.official import official_scores
from rksc_tot import MockEngine, solve
from rksc_tot.core.errors import ConfigError, VerifierError
from rksc_tot.core.task import function_task
from rksc_tot.search import Search
from rksc_tot.strategies import BFS, Beam
from rksc_tot.verifiers import PRM, prm

PROBLEM = "How much is 2 + 3, times 4?"


def make_task(depth=3, **options):
    return function_task(
        prompt=lambda problem: problem,
        is_solution=lambda problem, path: len(path) == depth,
        max_thoughts=depth,
        **options,
    )


def words(text, rng):
    return f"step {rng.randrange(1000)}\n"


def run(verifier, strategy=None, problem=PROBLEM, **options):
    engine = MockEngine(words)
    return solve(make_task(), problem, engine=engine, strategy=strategy or BFS(b=2, k=3), verifier=verifier, **options)


def texts(tree, node):
    return [step.text for step in tree.lineage(node)[1:]]


@pytest.mark.parametrize(("aggregate", "of"), [
    ("last", lambda steps: steps[-1]), ("min", min), ("mean", lambda steps: sum(steps) / len(steps)), ("product", math.prod),
])  # fmt: skip
def test_the_score_of_a_path_is_made_of_the_scores_of_its_steps(reward_model, reward_folders, aggregate, of):
    result = run(reward_model(aggregate=aggregate))
    scored = [node for node in result.tree if node.score is not None]
    assert len(scored) > 10
    for node in scored[::4]:
        steps = official_scores("step_marker", reward_folders["step_marker"], PROBLEM, texts(result.tree, node))
        assert node.score == pytest.approx(of(steps), abs=1e-5)


def test_the_range_is_that_of_the_output(reward_model):
    plain, difference = run(reward_model("token_classes")), run(reward_model("token_classes", output="difference"))
    pairs = [(a.score, b.score) for a, b in zip(plain.tree, difference.tree, strict=True) if a.score is not None]
    first = [(a, b) for a, b in pairs[:3]]
    assert all(b == pytest.approx(2 * a - 1) for a, b in first)
    search = Search(make_task(), PROBLEM, MockEngine(words), reward_model(output="difference"))
    assert search._scoring._verifier.bounds(search, search.root) == (-1.0, 1.0)


def test_siblings_share_the_kv_of_their_path_and_only_new_steps_are_computed(reward_model):
    verifier = reward_model("label_pair")
    verifier.load().clear()
    result = run(verifier)
    layout = verifier.load().layout
    paths = {node.id: layout.opening(PROBLEM) for node in [result.tree.root]}
    for node in result.tree:
        if node.parent is not None:
            paths[node.id] = paths[node.parent] + layout.step(node.text, node.depth == 1)
    distinct = {tuple(path[:n]) for path in paths.values() for n in range(1, len(path) + 1)}
    assert result.ledger.verifier_tokens == len(distinct)


def test_every_handle_is_released_with_its_search(reward_model):
    verifier = reward_model()
    run(verifier)
    engine = verifier.load()
    engine.check_integrity()
    assert sum(segment.handles for segment in engine.cache.segments()) == 0
    assert not verifier._paths


def test_an_outcome_model_judges_the_whole_text_so_far(reward_model, reward_folders):
    result = run(reward_model("outcome"), Beam(b=1, k=2))
    node = result.tree[result.best]
    expected = official_scores("outcome", reward_folders["outcome"], PROBLEM, texts(result.tree, node))[-1]
    assert node.score == pytest.approx(expected, abs=1e-5)
    assert set(node.labels) == {"incorrect", "correct"}


def test_an_outcome_model_has_no_steps_to_aggregate(reward_folders):
    with pytest.raises(ConfigError, match="judges whole answers, not steps, and aggregate is 'min' - use last"):
        prm(reward_folders["outcome"], aggregate="min")


def test_a_product_of_differences_is_refused(reward_folders):
    with pytest.raises(ConfigError, match="a product of differences would call two wrong steps right"):
        prm(reward_folders["step_marker"], aggregate="product", output="difference")


def test_without_a_folder_it_says_what_to_give():
    with pytest.raises(ConfigError, match="verifier 'prm': folder must be given"):
        PRM()


def test_a_path_that_is_too_long_for_the_reward_model_prunes_its_node(reward_model):
    texts = iter(["short\n", "word " * 2000 + "\n", "brief\n"])
    engine = MockEngine(lambda text, rng: next(texts))
    task = make_task(1, max_thought_tokens=20000)
    result = solve(task, PROBLEM, engine=engine, strategy=BFS(b=2, k=3), verifier=reward_model("value_head"))
    pruned = [node.pruned for node in result.tree if node.pruned and "context holds 8192" in node.pruned]
    assert len(pruned) == 1
    assert result.answer is not None


def test_the_problem_may_be_worded_for_the_reward_model(reward_model, reward_folders):
    verifier = reward_model(problem=lambda problem: problem.upper())
    result = run(verifier, BFS(b=1, k=1))
    node = result.tree[1]
    expected = official_scores("step_marker", reward_folders["step_marker"], PROBLEM.upper(), texts(result.tree, node))
    assert node.score == pytest.approx(expected[-1], abs=1e-5)


@pytest.mark.parametrize("wording", [lambda problem: None, lambda problem: "  ", lambda problem: 1 / 0])
def test_a_problem_without_text_ends_the_search_with_a_sentence(reward_model, wording):
    with pytest.raises(VerifierError, match="verifier 'prm' failed on node 0: "):
        run(reward_model(problem=wording))


def test_scores_do_not_depend_on_who_shares_the_engine(reward_model):
    verifier = reward_model("value_head")
    first = run(verifier)
    run(verifier, problem="Another?")
    assert run(verifier).tree == first.tree
