#compdef gputrace
# SPDX-License-Identifier: Apache-2.0
# Completion of gputrace for zsh: source <(gputrace completion zsh), or this as a file _gputrace in a folder of $fpath
_gputrace() {
    local -a lines described
    local line
    if (( ${words[(I)--]} )); then
        lines=(files) # what follows is run, not completed
    else
        lines=("${(@f)$(${~words[1]} "${(@Q)words[2,CURRENT]}" --generate-bash-completion 2>/dev/null)}")
    fi
    case $lines[1] in
    files) _files ;;
    folders) _files -/ ;;
    *)
        for line in "${(@)lines[2,-1]}"; do
            described+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
        done
        _describe -V gputrace described
        ;;
    esac
}
if [ "$funcstack[1]" = _gputrace ]; then
    _gputrace "$@"
else
    compdef _gputrace gputrace
fi
