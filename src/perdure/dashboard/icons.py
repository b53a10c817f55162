"""How states look: a sign and a word besides the colour, so that nobody has to tell colours apart."""

from markupsafe import Markup

from perdure.model.states import WorkflowStatus
from perdure.views.search import LABELS

SIGNS: dict[str, str] = {
    "running": "▶",
    "waiting": "◇",
    "compensating": "↶",
    "completed": "✓",
    "failed": "✕",
    "cancelled": "⊘",
    "recurred": "↻",
    "stuck": "!",
    "queued": "…",
    "retrying": "↻",
}


def label(status: WorkflowStatus | str) -> str:
    """Return the word for a state."""
    try:
        return LABELS[WorkflowStatus(status)]
    except ValueError:
        return str(status)


def icon(status: WorkflowStatus | str) -> Markup:
    """Return a state with its sign and its word."""
    word = label(status)
    return Markup('<span class="state s-{}"><span aria-hidden="true">{}</span> {}</span>').format(
        word, SIGNS.get(word, "·"), word.replace("_", " ")
    )
