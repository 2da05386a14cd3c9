"""The contract of an engine: the calls that a search makes on a language model.

An engine works on tokens and handles, not on tasks and trees. A *handle* stands for a token path (prompt, thoughts so far) and,
while it is resident, for the KV of those tokens. All work of one call is submitted at once, so an engine can put it, and
the work of other searches, into the same forward passes.
"""

from rksc_tot.core.task.sampling import Sampling
from rksc_tot.engine.base.account import Account, Usage
from rksc_tot.engine.base.checks import CLOSED, check_handle, check_layers, check_prompt_kv
from rksc_tot.engine.base.engine import (
    CompressingEngine,
    Engine,
    Handle,
    PromptReuseVerdict,
    Reader,
    SharingEngine,
    StatesEngine,
    ThinkingEngine,
)
from rksc_tot.engine.base.requests import (
    STEP_LABELS,
    Completion,
    Finish,
    GenerateRequest,
    LabelRequest,
    LabelScores,
)
from rksc_tot.engine.base.thinking import AppendedText, ThinkingFormat

__all__ = [
    "CLOSED",
    "STEP_LABELS",
    "Account",
    "AppendedText",
    "Completion",
    "CompressingEngine",
    "Engine",
    "Finish",
    "GenerateRequest",
    "Handle",
    "LabelRequest",
    "LabelScores",
    "PromptReuseVerdict",
    "Reader",
    "Sampling",
    "SharingEngine",
    "StatesEngine",
    "ThinkingEngine",
    "ThinkingFormat",
    "Usage",
    "check_handle",
    "check_layers",
    "check_prompt_kv",
]
