import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, PreTrainedTokenizerFast

from rksc_tot.engine import TransformersEngine
from rksc_tot.tasks.game24.tokenizer import build_tokenizer

SHAPE = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "pad_token_id": 1,
    "eos_token_id": 2,
}
PER_TOKEN = 2 * SHAPE["num_hidden_layers"] * 2 * 12 * 4
"""KV bytes of one token of :func:`llama`: keys and values, layers, key heads of 12, fp32."""


def llama(vocab_size: int, layers: int = SHAPE["num_hidden_layers"]) -> LlamaForCausalLM:
    torch.manual_seed(0)
    shape = {**SHAPE, "num_hidden_layers": layers}
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocab_size, **shape)).eval()


def mistral(vocab_size: int) -> MistralForCausalLM:
    torch.manual_seed(0)
    return MistralForCausalLM(MistralConfig(vocab_size=vocab_size, sliding_window=8, **SHAPE)).eval()


def byte_tokenizer(chat: bool = True) -> PreTrainedTokenizerFast:
    """A tokenizer of bytes with a few merges: words, and a token of two line ends."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<s>": 0, "<pad>": 1, "</s>": 2} | {c: i + 3 for i, c in enumerate(alphabet)}
    merges = [("Ċ", "Ċ"), (".", "ĊĊ"), ("y", "e"), ("ye", "s"), ("Ġ", "yes"), ("n", "o"), ("Ġ", "no")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    core = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(".\n\n", "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", pad_token="<pad>", eos_token="</s>")
    if chat:
        tokenizer.chat_template = (
            "{{ '<s>' }}{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}[assistant]{% endif %}"
        )
    return tokenizer


@pytest.fixture
def engine():
    tokenizer = build_tokenizer()
    with TransformersEngine(llama(len(tokenizer)), tokenizer, name="tiny") as engine:
        yield engine
        engine.check_integrity()


@pytest.fixture
def byte_engine():
    tokenizer = byte_tokenizer()
    with TransformersEngine(llama(len(tokenizer)), tokenizer, name="bytes") as engine:
        yield engine
        engine.check_integrity()
