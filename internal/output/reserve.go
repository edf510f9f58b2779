// SPDX-License-Identifier: Apache-2.0

package output

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gputrace/gputrace/internal/exit"
)

// least is the room that a recording needs to begin, bytes.
const least = 256 << 10

// Reservation is a folder of results while they are made. It is there under its name from the start, so that no other gputrace takes the
// name, and what was written is found there if gputrace is killed.
type Reservation struct {
	path    string
	results *Results
	lock    *os.File // the folder; locked as long as it is open
	aside   string   // where the folder is that it replaces; empty: it replaces none
}

// Reserve makes the folder of results, or returns an error of usage which says why results could not be written there.
// Close must be called when they are written, or when there are none.
func Reserve(path string, r *Results) (*Reservation, error) {
	path = filepath.Clean(path)
	v := &Reservation{results: r}
	err := v.take(path)
	for i := 2; r.Next && errors.As(err, new(existsError)) && i < 1000; i++ {
		err = v.take(fmt.Sprintf("%s.%d", path, i))
	}
	if err == nil {
		err = v.prove()
	}
	if err != nil {
		return nil, exit.With(exit.Misuse, errors.Join(err, v.Close()))
	}
	return v, nil
}

// Path is the folder.
func (v *Reservation) Path() string { return v.path }

// take makes the folder under a name. One that is replaced is moved aside.
func (v *Reservation) take(path string) error {
	if err := CheckFolder(path, v.results); err != nil {
		return err
	}
	aside := ""
	if _, err := os.Lstat(path); err == nil {
		if v.results.Next {
			return existsError(path)
		}
		aside = hidden(path, fmt.Sprintf("%d.%d.old", os.Getpid(), time.Now().UnixNano()))
		if err := os.Rename(path, aside); err != nil {
			return makeError(path, err)
		}
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		if aside != "" {
			err = errors.Join(err, os.Rename(aside, path))
		}
		if errors.Is(err, fs.ErrExist) {
			return existsError(path)
		}
		return makeError(path, err)
	}
	v.path, v.aside = path, aside
	return GiveToUser(path)
}

// hidden is a name beside a folder that ls does not show.
func hidden(path, end string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+"."+end)
}

// prove locks the folder and writes to it, as much as a recording begins with.
func (v *Reservation) prove() error {
	lock, err := os.Open(v.path)
	if err != nil {
		return fmt.Errorf("output %s: %w", v.path, err)
	}
	v.lock = lock
	if tmp, err := makeTemporary(v.path); err != nil || os.Remove(tmp) != nil {
		return err
	}
	_ = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) // not every file system has locks
	name := filepath.Join(v.path, ".room")
	err = os.WriteFile(name, make([]byte, least), 0o600)
	if err = errors.Join(err, os.Remove(name)); err == nil {
		return nil
	}
	why := "give another folder with -o"
	switch {
	case errors.Is(err, syscall.EFBIG):
		why = "the limit on the size of files is too low (RLIMIT_FSIZE): ulimit -f unlimited, or LimitFSIZE=infinity in a unit"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		why = "make room, or " + why
	}
	return exit.Say(fmt.Sprintf("output %s: the first %d KiB of a recording cannot be written: %v\n  %s", v.path, least>>10,
		underName(err, name), why), err)
}

// killedFor is how long a gputrace that was killed can still hold its lock: the kernel removes its probes first.
const killedFor = 2 * time.Second

// locked reports whether another gputrace is recording to a folder.
func locked(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	for begun := time.Now(); ; time.Sleep(killedFor / 40) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) || time.Since(begun) > killedFor {
			return errors.Is(err, syscall.EWOULDBLOCK)
		}
	}
}

// Busy reports whether a gputrace is recording to a folder. On a file system without locks the answer is no.
func Busy(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB), syscall.EWOULDBLOCK)
}

// Part makes the folder of one process.
func (v *Reservation) Part(name string) error {
	path := filepath.Join(v.path, name)
	if err := os.Mkdir(path, 0o755); err != nil {
		return fmt.Errorf("output %s: %w", v.path, err)
	}
	return GiveToUser(path)
}

// Folder starts the folder of results that takes the place of the reserved one when it is complete.
func (v *Reservation) Folder() (*Folder, error) {
	tmp, err := makeTemporary(v.path)
	if err != nil {
		return nil, err
	}
	return &Folder{Dir: tmp, path: v.path, results: v.results, reserved: v}, nil
}

// Close releases the name. A folder in which there is something stays, and what it replaces is removed; else that is as it was.
func (v *Reservation) Close() error {
	if v.lock != nil {
		v.lock.Close()
	}
	if v.path == "" {
		return nil
	}
	for _, e := range entries(v.path) {
		if e.IsDir() {
			_ = os.Remove(filepath.Join(v.path, e.Name())) // where nothing is in it
		}
	}
	path, aside := v.path, v.aside
	v.path, v.aside = "", ""
	switch removed := os.Remove(path) == nil; {
	case removed && aside != "":
		return os.Rename(aside, path)
	case !removed && aside != "":
		return removeReplaced(path)
	}
	return nil
}

// removeReplaced removes the folder that was moved aside for this one, and those for which a gputrace did so that was killed.
func removeReplaced(path string) error {
	var errs []error
	for _, e := range entries(filepath.Dir(path)) {
		old := filepath.Join(filepath.Dir(path), e.Name())
		if ours, _ := filepath.Match(escape.Replace(hidden(path, ""))+"*.old", old); ours {
			errs = append(errs, os.RemoveAll(old))
		}
	}
	return errors.Join(errs...)
}

// escape quotes what has a meaning in a pattern.
var escape = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`)

// entries are those of a folder that can be read.
func entries(path string) []fs.DirEntry {
	out, _ := os.ReadDir(path)
	return out
}
