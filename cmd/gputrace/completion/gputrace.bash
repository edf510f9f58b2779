# Completion of gputrace for bash: source <(gputrace completion bash)
_gputrace() {
    local kind=files word cur=${COMP_WORDS[COMP_CWORD]} program=${COMP_WORDS[0]/#\~/$HOME}
    COMPREPLY=()
    for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
        [ "$word" != -- ] || program= # what follows is run, not completed
    done
    if [ -n "$program" ]; then
        {
            read -r kind || return
            while IFS=$'\t' read -r word _; do COMPREPLY+=("$word"); done
        } < <("$program" "${COMP_WORDS[@]:1:COMP_CWORD}" --generate-bash-completion 2>/dev/null)
    fi
    [ "$cur" != = ] || cur= # bash takes --format= apart
    case $kind in
    files) mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
    folders) mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
    *) return ;;
    esac
    compopt -o filenames 2>/dev/null
}
complete -F _gputrace gputrace
