# SPDX-License-Identifier: Apache-2.0
# Completion of gputrace for fish: gputrace completion fish > ~/.config/fish/completions/gputrace.fish
function __gputrace_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l lines files
    if not contains -- -- $words "$current" # what follows is run, not completed
        set lines (command $words[1] $words[2..-1] "$current" --generate-bash-completion 2>/dev/null)
    end
    switch "$lines[1]"
        case files
            __fish_complete_path "$current"
        case folders
            __fish_complete_directories "$current"
        case '*'
            printf '%s\n' $lines[2..-1]
    end
end
complete -c gputrace -f -a '(__gputrace_complete)'
