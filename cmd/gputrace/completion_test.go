// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/internal/terminaltest"
)

// completionCases are command lines, the cursor at their end, and what must be offered, among others where it ends in "...".
// They are typed in a folder that has the files map.gputrace and notes, and the folder results.
var completionCases = []struct{ line, want string }{
	{"gputrace re", "record report"},
	{"gputrace ", "completion dump help man record report version who ..."},
	{"gputrace nothing-like-it", ""},
	{"gputrace dump -f ", "json snapshot text"},
	{"gputrace dump -f s", "snapshot"},
	{"gputrace dump --format ", "json snapshot text"},
	{"gputrace dump --for", "--force --format"},
	{"gputrace dump -p 42 --no", "--no-holders"},
	{"gputrace dump --no-holders --no", ""},
	{"gputrace who --by m", "module"},
	{"gputrace --max", "--max-age --max-growth-per-step --max-peak --max-size --max-stacks"},
	{"gputrace 42 --max", "--max-age --max-growth-per-step --max-peak --max-size --max-stacks"},
	{"gputrace export x -f pprof,pprof-a", "pprof,pprof-alloc"},
	{"gputrace report x --at p", "peak"},
	{"gputrace 42 -f no", "none"},
	{"gputrace record -f no", "none"},
	{"gputrace help v", "version"},
	{"gputrace completion ", "bash fish zsh"},
	{"gputrace report m", "map.gputrace"},
	{"gputrace report ", "map.gputrace notes results"},
	{"gputrace dump -o n", "notes"},
	{"gputrace record --cache-dir ", "results"},
}

// shellFolder is where the cases are typed.
func shellFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "map.gputrace"), nil, 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "notes"), nil, 0o644))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "results"), 0o755))
	return dir
}

// requireOffered checks the words that a shell offers.
func requireOffered(t *testing.T, line, want string, got []string) {
	t.Helper()
	for i := range got {
		got[i] = strings.TrimSuffix(got[i], "/")
	}
	words := strings.Fields(want)
	if n := len(words); n > 0 && words[n-1] == "..." {
		require.Subset(t, got, words[:n-1], line)
		return
	}
	require.ElementsMatch(t, words, got, line)
}

// shell runs a script in a shell that has the program in its PATH.
func shell(t *testing.T, name string, args ...string) string {
	t.Helper()
	_, env := program(t)
	cmd := exec.Command(tool(t, name), args...)
	cmd.Dir, cmd.Env = shellFolder(t), append(env, "HOME="+t.TempDir())
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	require.Empty(t, stderr.String())
	return string(out)
}

// TestCompleteBash calls the function that bash calls, with the words as bash makes them: "=" is one.
func TestCompleteBash(t *testing.T) {
	cases := append([]struct{ line, want string }{
		{"gputrace dump --format=", "json snapshot text"},
		{"gputrace dump --format=js", "json"},
		{"gputrace dump -o=n", "notes"},
	}, completionCases...)
	for _, c := range cases {
		line := c.line + "|"
		words := strings.Fields(strings.ReplaceAll(line, "=", " = "))
		for i := range words {
			words[i] = strings.TrimSuffix(words[i], "|")
		}
		if strings.HasSuffix(c.line, "=") {
			words = words[:len(words)-1] // bash has no empty word behind it
		}
		script := `source <(gputrace completion bash) && [ "$(complete -p gputrace)" = "complete -F _gputrace gputrace" ] &&
			COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) && { _gputrace; printf '%s\n' "${COMPREPLY[@]}"; }`
		got := shell(t, "bash", append([]string{"--norc", "-c", script, "bash"}, words...)...)
		requireOffered(t, c.line, c.want, strings.Fields(got))
	}
}

func TestCompleteFish(t *testing.T) {
	cases := append([]struct{ line, want string }{{"gputrace dump --format=js", "--format=json"}}, completionCases...)
	for _, c := range cases {
		out := shell(t, "fish", "--no-config", "-c", "gputrace completion fish | source; complete -C "+fishQuote(c.line))
		var got []string
		for line := range strings.Lines(out) {
			word, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
			got = append(got, word)
		}
		requireOffered(t, c.line, c.want, got)
	}
}

func fishQuote(s string) string { return "'" + s + "'" }

// TestCompleteZsh types into an interactive zsh, which completes nothing otherwise, and lets it list what it would offer.
func TestCompleteZsh(t *testing.T) {
	path := tool(t, "zsh")
	_, env := program(t)
	terminal, zsh := startOnTerminal(t, path, []string{"-f", "-i"}, shellFolder(t),
		append(env, "HOME="+t.TempDir(), "TERM=dumb", "PS1=ready> "))
	defer func() { _ = zsh.Process.Kill(); _ = zsh.Wait() }()
	s := &conversation{t: t, terminal: terminal}
	s.typed("unsetopt zle_bracketed_paste; autoload -U compinit && compinit -u -D; source <(gputrace completion zsh); LISTMAX=1000\n")
	s.typed("unsetopt prompt_cr prompt_sp auto_menu always_last_prompt; setopt no_auto_menu no_menu_complete no_list_packed\n")
	s.typed("echo set-up-$((40+2))\n")
	s.await("set-up-42")
	s.await("ready> ")
	for _, c := range []struct {
		line string
		want []string
	}{
		{"gputrace re", []string{"gputrace re", "record", "report"}},
		{"gputrace rep", []string{"gputrace report"}},
		{"gputrace dump --format s", []string{"snapshot"}},
		{"gputrace dump --for", []string{"--force", "--format"}},
		{"gputrace report ma", []string{"map.gputrace"}},
		{"gputrace record --cache-dir r", []string{"results/"}},
	} {
		s.typed(c.line + "\t\t")
		for _, word := range c.want {
			s.await(word)
		}
		s.typed("\x15") // the line is given up
	}
}

// conversation is what is typed into a terminal, and what comes back.
type conversation struct {
	t        *testing.T
	terminal *os.File
	seen     string
}

func (c *conversation) typed(text string) {
	c.t.Helper()
	_, err := c.terminal.WriteString(text)
	require.NoError(c.t, err)
}

// await reads until a text has come, and forgets all up to it.
func (c *conversation) await(text string) {
	c.t.Helper()
	buf := make([]byte, 4096)
	require.NoError(c.t, c.terminal.SetReadDeadline(time.Now().Add(time.Minute)))
	for {
		if i := strings.Index(c.seen, text); i >= 0 {
			c.seen = c.seen[i+len(text):]
			return
		}
		n, err := c.terminal.Read(buf)
		require.NoError(c.t, err, "no %q; there is %q", text, c.seen)
		c.seen += string(buf[:n])
	}
}

// startOnTerminal starts a program whose terminal is a new one.
func startOnTerminal(t *testing.T, path string, args []string, dir string, env []string) (*os.File, *exec.Cmd) {
	t.Helper()
	master, slave := terminaltest.Open(t)
	require.NoError(t, unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 120}))
	cmd := exec.Command(path, args...)
	cmd.Dir, cmd.Env = dir, env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, cmd.Start())
	return master, cmd
}
