"""``kerolox completion``: the script by which a shell completes commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from kerolox.cli.output import RAW, print_line

PROGRAM = "kerolox"
VARIABLE = "_KEROLOX_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that completes commands and options in SHELL.

    \b
      bash: eval "$(kerolox completion bash)" in ~/.bashrc
      zsh:  eval "$(kerolox completion zsh)" in ~/.zshrc
      fish: kerolox completion fish > ~/.config/fish/completions/kerolox.fish
    """
    made = get_completion_class(shell)
    assert made is not None
    whole = click.get_current_context().find_root().command
    print_line(made(whole, {}, PROGRAM, VARIABLE).source().rstrip("\n"), RAW)
