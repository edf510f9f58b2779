// SPDX-License-Identifier: Apache-2.0

package darwin

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gputrace/gputrace/darwin/procargs"
	"github.com/gputrace/gputrace/recorder"
)

// ErrInject is of processes that no code can be loaded into.
var ErrInject = errors.New("code is loaded into one process, by its number: sudo gputrace -p PID --inject")

// injectTime is how long the process may take to run the script: its main thread does so when it next runs code of Python.
const injectTime = 20 * time.Second

// injector is run by the Python of the process, as another process of it: sys.remote_exec needs the same version (Python 3.14, "Remote
// debugging attachment protocol"). It is given the process, and the path of the script.
const injector = `import sys
if not hasattr(sys, "remote_exec"):
    sys.exit("Python %d.%d has no sys.remote_exec, which 3.14 has" % sys.version_info[:2])
try:
    sys.remote_exec(int(sys.argv[1]), sys.argv[2])
except PermissionError as e:
    sys.exit("%s; root may: sudo gputrace -p PID --inject" % e)
except (RuntimeError, OSError) as e:
    sys.exit(str(e))
`

// script is what the process runs. What it leaves there is the library, and a reference to it by which the next gputrace finds it. The
// numbers that it writes are those of shim.c.
const script = `def _gputrace_begin(library, folder, size, said):
    import ctypes, os, sys
    try:
        shim = getattr(sys, "_gputrace", None) or ctypes.CDLL(library)
        sys._gputrace = shim
        text = str(shim.gputrace_install_late(os.fsencode(folder), ctypes.c_uint64(size)))
    except BaseException as e:
        text = "%%s: %%s" %% (type(e).__name__, e)
    with open(said + ".new", "w") as f:
        f.write(text)
    os.rename(said + ".new", said)
_gputrace_begin(%s, %s, %d, %s)
del _gputrace_begin
`

// lateAnswers are what the library answers when it did not begin.
var lateAnswers = map[string]string{
	"0": "there is no device of Metal", "2": "another gputrace traces it", "3": "the file for its events could not be made",
}

// inject has a running process load the library.
func (s *source) inject(ctx context.Context) error {
	o := s.options
	if len(o.PIDs) != 1 || o.Name != nil || o.All || o.Children {
		return ErrInject
	}
	pid := o.PIDs[0]
	err := s.load(ctx, pid)
	if err != nil {
		return &recorder.AttachError{PID: pid, Err: fmt.Errorf("load a library into the process by sys.remote_exec: %w", err)}
	}
	s.late = pid
	o.Observer.Notice(fmt.Sprintf("gputrace %s · pid %d · a library of ours was loaded into the process, and stays there (%s)", o.Version,
		pid, ShimName))
	return nil
}

// load returns once the library has begun.
func (s *source) load(ctx context.Context, pid int) error {
	args, err := procargs.Of(pid)
	if err != nil {
		args = &procargs.Args{}
	}
	python := cmp.Or(s.config.Python, args.Exe)
	if err := mayRun(python); err != nil {
		return err
	}
	said := filepath.Join(s.dir, "said")
	file := filepath.Join(s.dir, "begin.py")
	text := fmt.Sprintf(script, pythonString(filepath.Join(s.dir, ShimName)), pythonString(s.dir), s.options.RingBytes, pythonString(said))
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return fmt.Errorf("write the script: %w", err)
	}
	if err := giveFolder(s.dir, pid); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, python, "-I", "-S", "-c", injector, strconv.Itoa(pid), file)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w", cmp.Or(string(bytes.TrimSpace(out)), "it printed nothing"), err)
	}
	return waitFor(ctx, pid, said)
}

// pythonString is a literal of Python.
func pythonString(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s) + `"`
}

// mayRun reports why root should not run a program: it is somebody else's, neither root's nor of who asked root.
func mayRun(path string) error {
	st, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("find the program of the process: %w", err)
	}
	owner, known := st.Sys().(*syscall.Stat_t)
	if !known || os.Geteuid() != 0 || owner.Uid == 0 || strconv.Itoa(int(owner.Uid)) == os.Getenv("SUDO_UID") {
		return nil
	}
	return fmt.Errorf("%s belongs to user %d: root does not run other people's programs", path, owner.Uid)
}

// giveFolder lets the process read and write in the folder, when it is another user's.
func giveFolder(dir string, pid int) error {
	uid, err := procargs.Owner(pid)
	if err != nil {
		return fmt.Errorf("find whose the process is: %w", err)
	}
	if uid == os.Geteuid() {
		return nil
	}
	if err := os.Chown(dir, uid, -1); err != nil {
		return fmt.Errorf("let the process write its events: %w", err)
	}
	return nil
}

// waitFor waits for what the script says.
func waitFor(ctx context.Context, pid int, said string) error {
	late := time.After(injectTime)
	for {
		answer, err := os.ReadFile(said)
		switch {
		case err == nil && string(answer) == "1":
			return nil
		case err == nil:
			return errors.New(cmp.Or(lateAnswers[string(answer)], string(answer)))
		case !errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("read what the process says: %w", err)
		case !running(pid):
			return errors.New("the process has ended")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-late:
			return fmt.Errorf("it has not run the script within %s: its main thread waits in a call that has not returned to Python", injectTime)
		case <-time.After(pause):
		}
	}
}
