# Completion of gputrace for fish: gputrace completion fish > ~/.config/fish/completions/gputrace.fish
function __gputrace_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l lines (command $words[1] __complete $words[2..-1] "$current" 2>/dev/null)
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
