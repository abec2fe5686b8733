"""openvino.genai's WhisperPipeline drops `extensions`: a library that is not there is no error, and models are read."""

import tempfile
from pathlib import Path
from typing import Any

from tools.upstream.common import tell, untried

try:
    import openvino_genai
except ImportError as error:
    untried(str(error))

if openvino_genai.__version__ < "2025":  # it crashes where a property is a list
    untried(f"openvino.genai {openvino_genai.__version__} has no extensions")

LIBRARY = "no-such-extension.so"


def complaint(pipeline: Any, folder: Path) -> str:
    """What a pipeline says of a folder without a model and a library that is not there."""
    try:
        pipeline(folder, "CPU", extensions=[LIBRARY])
    except (RuntimeError, TypeError) as error:
        return str(error)
    return "no error"


with tempfile.TemporaryDirectory() as temporary:
    for name in ("config.json", "generation_config.json", "preprocessor_config.json"):
        Path(temporary, name).write_text("{}")
    Path(temporary, "openvino_encoder_model.xml").write_text("not a model")
    found = complaint(openvino_genai.LLMPipeline, Path(temporary))
    if LIBRARY not in found:
        untried(f"LLMPipeline does not name it either: {found}")
    found = complaint(openvino_genai.WhisperPipeline, Path(temporary))
tell(LIBRARY not in found, f"an error that names {LIBRARY} before a model is read", found)
