# Completion of gputrace for bash: source <(gputrace completion bash)
_gputrace() {
    local kind word cur=${COMP_WORDS[COMP_CWORD]} program=${COMP_WORDS[0]/#\~/$HOME}
    COMPREPLY=()
    {
        read -r kind || return
        while IFS=$'\t' read -r word _; do COMPREPLY+=("$word"); done
    } < <("$program" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    [ "$cur" != = ] || cur= # bash takes --format= apart
    case $kind in
    files) mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
    folders) mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
    *) return ;;
    esac
    compopt -o filenames 2>/dev/null
}
complete -F _gputrace gputrace
