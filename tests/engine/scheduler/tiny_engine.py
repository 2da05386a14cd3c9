"""Engines on a tiny random model."""

from rksc_tot.engine import TransformersEngine
from rksc_tot.tasks.game24.tokenizer import build_tokenizer
from tests.engine.conftest import llama


def make(**options):
    tokenizer = build_tokenizer()
    return TransformersEngine(llama(len(tokenizer)), tokenizer, **options)
