"""Engines on a tiny random model."""

from rksc_tot.engine import TransformersEngine
from rksc_tot.tasks.game24.tokenizer import build_tokenizer
from tests.engine.conftest import llama


def make(**options):
    tokenizer = build_tokenizer()
    return TransformersEngine(llama(len(tokenizer)), tokenizer, **options)


def per_token():
    """KV bytes of one token: keys and values, 3 layers, 2 heads of 12, fp32."""
    return 2 * 3 * 2 * 12 * 4
