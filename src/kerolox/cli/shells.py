"""How bash and zsh complete: scripts and answers beside those of ``click``.

bash cuts words at ``@``, ``=`` and ``:`` too, which names and addresses of brokers have. So the
script hands over the line, words are found here, and a value loses what bash keeps of it. A value
of type ``nospace`` gets no blank behind it. fish needs neither.
"""

from __future__ import annotations

import os
from typing import ClassVar

from click.shell_completion import (
    BashComplete,
    CompletionItem,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)

_BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' response completion type value
    response=$(env COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_BREAKS="$COMP_WORDBREAKS" \\
        %(complete_var)s=bash_complete "$1" 2>/dev/null)
    COMPREPLY=()
    for completion in $response; do
        type=${completion%%%%,*}
        value=${completion#*,}
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            nospace) compopt -o nospace; COMPREPLY+=("$value") ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

_ZSH = """\
#compdef %(prog_name)s

%(complete_func)s() {
    local -a plain described unspaced response
    local type key descr
    (( ! $+commands[%(prog_name)s] )) && return 1
    response=("${(@f)$(env COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT-1)) \\
        %(complete_var)s=zsh_complete %(prog_name)s 2>/dev/null)}")
    for type key descr in ${response}; do
        case $type in
            dir) _path_files -/ ;;
            file) _path_files -f ;;
            nospace) unspaced+=("$key") ;;
            plain)
                if [[ "$descr" == "_" ]]; then
                    plain+=("$key")
                else
                    described+=("$key":"$descr")
                fi ;;
        esac
    done
    [ -n "$described" ] && _describe -V unsorted described -U
    [ -n "$plain" ] && compadd -U -V unsorted -a plain
    [ -n "$unspaced" ] && compadd -S '' -U -V unsorted -a unspaced
    return 0
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    %(complete_func)s "$@"
else
    compdef %(complete_func)s %(prog_name)s
fi
"""


class _Bash(BashComplete):
    source_template: ClassVar[str] = _BASH

    _kept = ""
    """What bash keeps of the word at the cursor."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the cursor, and the one at it."""
        if "COMP_LINE" not in os.environ:  # a script of an earlier release
            return super().get_completion_args()
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)[1:]
        incomplete = "" if not words or line[-1:].isspace() else words.pop()
        breaks = [each for each in os.environ.get("COMP_BREAKS", "") if not each.isspace()]
        self._kept = incomplete[: 1 + max(map(incomplete.rfind, breaks), default=-1)]
        return words, incomplete

    def format_completion(self, item: CompletionItem[str]) -> str:
        """Type and value, without what bash keeps."""
        return f"{item.type},{item.value.removeprefix(self._kept)}"


class _Zsh(ZshComplete):
    source_template: ClassVar[str] = _ZSH


def add_shells() -> None:
    """Let ``click`` know them."""
    add_completion_class(_Bash)
    add_completion_class(_Zsh)
