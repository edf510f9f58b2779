// SPDX-License-Identifier: Apache-2.0

package output

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/gputrace/gputrace/internal/exit"
)

// outputBuffer is how much is collected before it is written, bytes: some formats write a field at a time.
const outputBuffer = 64 << 10

// Stdout stands for standard output as the value of -o.
const Stdout = "-"

// File checks the file that -o names, before any work is done for it; "-" and nothing stand for standard output, and
// give nothing.
func File(path string, force bool) (string, error) {
	if path == Stdout || path == "" {
		return "", nil
	}
	if _, err := outputPlace(path, force); err != nil {
		return "", exit.With(exit.Misuse, err)
	}
	return path, nil
}

// Write writes what content writes to a file, which appears under its name when it is complete and belongs to the user
// who called sudo. A file of that name is left alone without force. An empty path and "-" are standard output; binary output
// is not written to a terminal.
func Write(path string, force, binary bool, content func(io.Writer) error) error {
	if err := CheckTerminal(path, binary); err != nil {
		return err
	}
	if path == "" || path == Stdout {
		return writeBuffered(os.Stdout, content)
	}
	place, err := outputPlace(path, force)
	if err != nil {
		return exit.With(exit.Misuse, err)
	}
	if place.device {
		return writeDevice(path, content)
	}
	return writeBeside(place.path, force, content)
}

// Joined writes contents one after the other, with an empty line between them if they are apart.
func Joined(contents []func(io.Writer) error, apart bool) func(io.Writer) error {
	return func(w io.Writer) error {
		for i, content := range contents {
			if i > 0 && apart {
				if _, err := io.WriteString(w, "\n"); err != nil {
					return fmt.Errorf("write: %w", err)
				}
			}
			if err := content(w); err != nil {
				return err
			}
		}
		return nil
	}
}

// CheckTerminal refuses to write a binary format to a terminal.
func CheckTerminal(path string, binary bool) error {
	if binary && (path == "" || path == Stdout) && IsTerminal(os.Stdout) {
		return exit.Usage("this is a binary format, of no use on a terminal: give -o FILE, or pipe it to another program")
	}
	return nil
}

// IsTerminal reports whether a file is a terminal.
func IsTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// place is where a file is to be written.
type place struct {
	path   string // what a link leads to, when it is to be replaced
	device bool   // not a file but /dev/null, a pipe: written to as it is
}

// outputPlace says where a file of that name is to be written, or why it cannot be.
func outputPlace(path string, force bool) (place, error) {
	if err := checkParent(path); err != nil {
		return place{}, err
	}
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return place{path: path}, checkWritable(path)
	} else if err != nil {
		return place{}, makeError(path, err)
	}
	st, err := os.Stat(path)
	switch {
	case err == nil && st.Mode()&(fs.ModeDevice|fs.ModeNamedPipe) != 0:
		return place{path: path, device: true}, nil
	case !force:
		return place{}, existsError(path)
	case err != nil:
		return place{}, fmt.Errorf("output %s: %w", path, err)
	case !st.Mode().IsRegular():
		return place{}, fmt.Errorf("output %s exists already and is not a file: give another with -o", path)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return place{}, fmt.Errorf("output %s: %w", path, err)
	}
	return place{path: real}, checkWritable(real)
}

func writeBuffered(w io.Writer, content func(io.Writer) error) error {
	b := bufio.NewWriterSize(w, outputBuffer)
	if err := content(b); err != nil {
		return err
	}
	return b.Flush()
}

func writeDevice(path string, content func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("output %s: %w", path, err)
	}
	if err := errors.Join(writeBuffered(f, content), f.Close()); err != nil {
		return fmt.Errorf("output %s: %w", path, err)
	}
	return nil
}

// writeBeside writes to a temporary file beside path, and renames it when it is complete. It is removed when that fails, and
// when the user interrupts it.
func writeBeside(path string, force bool, content func(io.Writer) error) error {
	name := filepath.Join(filepath.Dir(path), fmt.Sprintf(".%s.%d.%d.tmp", filepath.Base(path), os.Getpid(), time.Now().UnixNano()))
	tmp, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return makeError(path, err)
	}
	defer os.Remove(name)
	defer removeOnSignal(name)()
	err = errors.Join(writeBuffered(tmp, content), tmp.Sync(), tmp.Close())
	if err == nil {
		err = GiveToUser(name)
	}
	switch {
	case err != nil:
	case force:
		err = os.Rename(name, path)
	default:
		err = publish(name, path)
	}
	if err == nil || errors.As(err, new(existsError)) {
		return err
	}
	return fmt.Errorf("output %s: %w", path, underName(err, name))
}

// underName is what the system says of a temporary file, without its name.
func underName(err error, tmp string) error {
	var file *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &file) && file.Path == tmp:
		return file.Err
	case errors.As(err, &link) && link.Old == tmp:
		return link.Err
	}
	return err
}

// removeOnSignal removes a file and ends gputrace at Ctrl-C and its like, until the function that it returns is called.
func removeOnSignal(path string) (stop func()) {
	signals, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		select {
		case <-signals:
			_ = os.Remove(path)
			os.Exit(exit.Interrupted)
		case <-done:
		}
	}()
	return func() {
		signal.Stop(signals)
		close(done)
	}
}

// publish renames a file to its final name. A link cannot replace a file that came meanwhile; not every file system has links.
func publish(tmp, path string) error {
	err := os.Link(tmp, path)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrExist):
		return existsError(path)
	}
	if _, err := os.Lstat(path); err == nil {
		return existsError(path)
	}
	return os.Rename(tmp, path)
}
