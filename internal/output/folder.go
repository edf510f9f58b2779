// SPDX-License-Identifier: Apache-2.0

// Package output writes what a command makes: a file or a folder that appears under its name when it is complete, that belongs to
// the user behind sudo, and that replaces nothing unless that is asked for.
package output

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/internal/exit"
)

// Results says what a folder of results may hold: with force, a folder that holds nothing else is replaced.
type Results struct {
	Files []string       // names of files
	Parts *regexp.Regexp // names of folders that hold the same kind of files; nil: there are none
	Force bool           // a folder of results that has the name already is replaced
	Next  bool           // where the name is taken, NAME.2 or the next free one is reserved
}

// Folder is a folder of results that appears under its name only when it is complete.
type Folder struct {
	// Dir is where it is until then: a hidden folder beside it.
	Dir string

	path     string
	results  *Results
	reserved *Reservation // nil: the name was not reserved
}

// CheckFolder says, before anything is traced, whether a folder of that name could be written.
func CheckFolder(path string, r *Results) error {
	if path == Stdout {
		return fmt.Errorf("output -: the results are several files: give a folder")
	}
	if err := checkParent(path); err != nil {
		return err
	}
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return checkWritable(path)
	case err == nil && r.Next:
		return checkWritable(path)
	case err != nil:
		return fmt.Errorf("output %s: %w", path, err)
	case st.IsDir() && locked(path):
		return busyError(path)
	case !r.Force && r.cutOff(path):
		return exit.Say(fmt.Sprintf("output %s holds a recording that was cut off, which gputrace report %s opens: give another with -o, or "+
			"--force to replace it",
			path, path), existsError(path))
	case !r.Force:
		return existsError(path)
	case !st.IsDir():
		return fmt.Errorf("output %s exists already and is not a folder: give another with -o", path)
	}
	return r.check(path)
}

// existsError is the path of an output that is there already.
type existsError string

func (e existsError) Error() string {
	return fmt.Sprintf("output %s exists already: give another with -o, or --force to replace it", string(e))
}

func (e existsError) Unwrap() error { return fs.ErrExist }

// busyError is the path of a folder that another gputrace has reserved.
type busyError string

func (e busyError) Error() string {
	return fmt.Sprintf("output %s: another gputrace is recording there: give another with -o", string(e))
}

// cutOff reports whether nothing is in a folder but recordings, to which the other files were not added.
func (r *Results) cutOff(path string) bool {
	found := entries(path)
	for _, e := range found {
		part := e.IsDir() && r.Parts != nil && r.Parts.MatchString(e.Name())
		if !part && filepath.Ext(e.Name()) != ".gputrace" || part && !r.cutOff(filepath.Join(path, e.Name())) {
			return false
		}
	}
	return len(found) > 0
}

// check says whether a folder has nothing in it but what gputrace wrote.
func (r *Results) check(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return fmt.Errorf("output %s: %w", path, err)
	}
	for _, e := range entries {
		if e.IsDir() && r.Parts != nil && r.Parts.MatchString(e.Name()) {
			if err := r.check(filepath.Join(path, e.Name())); err != nil {
				return err
			}
			continue
		}
		if !e.Type().IsRegular() || !slices.Contains(r.Files, e.Name()) {
			return fmt.Errorf("output %s holds %s, which gputrace did not write: --force would remove it; give another with -o",
				path, strconv.Quote(e.Name()))
		}
	}
	return nil
}

// checkParent says whether the folder in which an output is to be is there.
func checkParent(path string) error {
	dir := filepath.Dir(path)
	st, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return exit.Say(fmt.Sprintf("output %s: its folder %s is not there: make it, or give another with -o", path, dir), err)
	case err != nil:
		return fmt.Errorf("output %s: its folder: %w", path, err)
	case !st.IsDir():
		return fmt.Errorf("output %s: %s is not a folder", path, dir)
	}
	return nil
}

// checkWritable says whether something could be made beside a path, as far as rights and the file system go.
func checkWritable(path string) error {
	if err := unix.Faccessat(unix.AT_FDCWD, filepath.Dir(path), unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return makeError(path, err)
	}
	return nil
}

// makeError says why an output cannot be made. Its temporary name, which is in the error of the system, says nothing to a user.
func makeError(path string, err error) error {
	why := err
	var at *fs.PathError
	if errors.As(err, &at) {
		why = at.Err
	}
	var link *os.LinkError
	if errors.As(err, &link) {
		why = link.Err
	}
	return exit.Say(fmt.Sprintf("output %s: nothing can be made in %s: %v\n  give another folder with -o", path, filepath.Dir(path), why), err)
}

// CreateFolder starts a folder under a temporary name beside its final one.
func CreateFolder(path string, r *Results) (*Folder, error) {
	if err := CheckFolder(path, r); err != nil {
		return nil, err
	}
	tmp, err := makeTemporary(path)
	if err != nil {
		return nil, err
	}
	return &Folder{Dir: tmp, path: path, results: r}, nil
}

// makeTemporary makes a hidden folder beside a path.
func makeTemporary(path string) (string, error) {
	tmp, err := os.MkdirTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.tmp")
	if err != nil {
		return "", makeError(path, err)
	}
	return tmp, nil
}

// Part makes a folder in it for the results of one process. It appears with the whole.
func (o *Folder) Part(name string) (*Folder, error) {
	tmp := filepath.Join(o.Dir, name)
	if err := os.Mkdir(tmp, 0o755); err != nil {
		return nil, fmt.Errorf("output %s: %w", o.path, err)
	}
	return &Folder{Dir: tmp, path: filepath.Join(o.path, name), results: o.results, reserved: o.reserved}, nil
}

// Replaces reports whether a file is in the reserved folder, which this one takes the place of when it is finished.
func (o *Folder) Replaces(file string) bool {
	return o.reserved != nil && filepath.Dir(file) == o.path
}

// Write makes one of its Results' Files in it.
func (o *Folder) Write(name string, content func(io.Writer) error) error {
	if !slices.Contains(o.results.Files, name) {
		return fmt.Errorf("write %s: not one of the files of a result", filepath.Join(o.path, name))
	}
	f, err := os.OpenFile(filepath.Join(o.Dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Join(o.path, name), err)
	}
	err = errors.Join(content(f), f.Sync(), f.Close())
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Join(o.path, name), err)
	}
	return nil
}

// Finish hands the folder to the user behind sudo and renames it to its final name.
func (o *Folder) Finish() error {
	if err := os.Chmod(o.Dir, 0o755); err != nil {
		return fmt.Errorf("output %s: %w", o.path, err)
	}
	if err := GiveToUser(o.Dir); err != nil {
		return err
	}
	if o.reserved == nil {
		if err := CheckFolder(o.path, o.results); err != nil { // rename would replace an empty folder
			return err
		}
	}
	old := o.Dir + ".old"
	err := os.Rename(o.path, old)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("output %s: %w", o.path, err)
	}
	replaced := err == nil
	if err := os.Rename(o.Dir, o.path); err != nil {
		if replaced {
			err = errors.Join(err, os.Rename(old, o.path))
		}
		return fmt.Errorf("output %s: %w", o.path, err)
	}
	if replaced {
		_ = os.RemoveAll(old)
	}
	return nil
}

// Discard removes what was written; of a folder that was finished, nothing.
func (o *Folder) Discard() { _ = os.RemoveAll(o.Dir) }

// GiveToUser makes a file or folder belong to the user who called sudo, if there is one.
func GiveToUser(path string) error {
	uid, err1 := strconv.Atoi(os.Getenv("SUDO_UID"))
	gid, err2 := strconv.Atoi(os.Getenv("SUDO_GID"))
	if err1 != nil || err2 != nil || os.Geteuid() != 0 {
		return nil
	}
	return filepath.WalkDir(path, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := os.Lchown(p, uid, gid); err != nil {
			return fmt.Errorf("give %s to user %d: %w", p, uid, err)
		}
		return nil
	})
}
