"""`perdure completion`."""

from typing import Annotated, Literal

from cyclopts import Parameter


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="Shell.")],
    /,
) -> None:
    """Print the completion script of a shell; save it where the shell looks for such scripts."""
    from perdure.cli.main import build

    print(build().generate_completion(prog_name="perdure", shell=shell))
