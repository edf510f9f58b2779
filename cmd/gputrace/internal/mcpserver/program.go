// SPDX-License-Identifier: Apache-2.0

package mcpserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/process"
)

const (
	// readTimeout bounds the reading of a recording or a process.
	readTimeout = 3 * time.Minute
	// endTimeout is the time that gputrace has after Ctrl-C to detach and to write.
	endTimeout = 20 * time.Second
	// maxOutput is the most that gputrace may print for an answer, bytes. Only a small part of it is returned.
	maxOutput = 512 << 20
	// maxError is the most of an error message that is returned, bytes.
	maxError = 2000
)

// errTooLarge means that gputrace printed more than maxOutput.
var errTooLarge = errors.New("the answer is too large")

// bounded keeps what is written to it, up to a limit.
type bounded struct {
	bytes.Buffer
	limit int
}

// Write returns errTooLarge beyond the limit, which ends the program.
func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > b.limit {
		return 0, errTooLarge
	}
	return b.Buffer.Write(p)
}

// answers are the exit codes of a command that has answered.
var answers = []int{exit.OK, exit.Findings}

// output runs gputrace and returns what it prints. none is a further exit code that means an answer without contents.
func (t *tools) output(ctx context.Context, none int, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, t.program.Program, args...)
	cmd.Env = append(os.Environ(), "NO_COLOR=1", "COLUMNS=200", "TERM=dumb")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // so that it detaches in order
	cmd.WaitDelay = endTimeout
	out, said := &bounded{limit: maxOutput}, &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = out, said
	err := cmd.Run()
	var ended *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("gputrace %s: %w", args[0], context.Cause(ctx))
	case errors.As(err, &ended):
		if code := ended.ExitCode(); code == none || slices.Contains(answers, code) {
			return out.Bytes(), nil
		}
		return nil, fmt.Errorf("%s\n%s", lastBytes(strings.TrimSpace(said.String()), maxError), meaning(ended.ExitCode()))
	case err != nil:
		return nil, fmt.Errorf("run gputrace %s: %w", args[0], err)
	}
	return out.Bytes(), nil
}

// meaning returns an exit code in words.
func meaning(code int) string {
	for _, c := range exit.Codes {
		if c.Code == code {
			return fmt.Sprintf("(exit code %d: %s)", code, c.Meaning)
		}
	}
	return fmt.Sprintf("(exit code %d)", code)
}

// lastBytes returns the end of a text, from the beginning of a line if it is cut.
func lastBytes(text string, n int) string {
	if len(text) <= n {
		return text
	}
	_, rest, _ := strings.Cut(text[len(text)-n:], "\n")
	return rest
}

// ask runs gputrace and decodes the JSON that it prints. Fields that answer has no place for are left out.
func (t *tools) ask(ctx context.Context, answer any, args ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readTimeout, fmt.Errorf("no answer within %s", readTimeout))
	defer cancel()
	out, err := t.output(ctx, exit.OK, args...)
	if err != nil {
		return err
	}
	return decode(out, answer, args[0])
}

func decode(out []byte, answer any, command string) error {
	if err := json.Unmarshal(out, answer); err != nil {
		return fmt.Errorf("read what gputrace %s printed: %w", command, err)
	}
	return nil
}

// file returns the absolute path of a recording: it cannot be taken for a flag.
func file(path string) (string, error) {
	if path == "" {
		return "", errors.New("which recording? give the path of a folder of gputrace record, or of its trace.gputrace")
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("find recording %s: %w", path, err)
	}
	return abs, nil
}

// own refuses a process of another user.
func (t *tools) own(pid int) error {
	if pid <= 0 {
		return errors.New("which process? give its pid; list_processes lists them")
	}
	if t.program.AllUsers {
		return nil
	}
	p, err := process.Open(pid)
	if errors.Is(err, process.ErrNotExist) {
		return fmt.Errorf("no process %d; list_processes lists those that use a GPU", pid)
	}
	if err != nil {
		return err
	}
	uid, err := p.UID()
	if err != nil {
		return err
	}
	if uid != ownUser() {
		return fmt.Errorf("pid %d belongs to another user (UID %d): gputrace mcp --all-users looks at such processes too", pid, uid)
	}
	return nil
}

// ownUser returns the user who started the server, also with sudo.
func ownUser() int {
	if uid, err := strconv.Atoi(os.Getenv("SUDO_UID")); err == nil && os.Geteuid() == 0 {
		return uid
	}
	return os.Getuid()
}
