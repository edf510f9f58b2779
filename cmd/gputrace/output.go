package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// outputFolder is a folder of results that appears under its name only when it is complete.
type outputFolder struct {
	path string
	tmp  string
}

// checkFolder says, before anything is traced, whether a folder of that name could be written.
func checkFolder(path string) error {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("output %s exists already: give another with -o", path)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("output %s: %w", path, err)
	}
	dir := filepath.Dir(path)
	st, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("output %s: its folder: %w", path, err)
	}
	if !st.IsDir() {
		return fmt.Errorf("output %s: %s is not a folder", path, dir)
	}
	return nil
}

// createFolder starts a folder under a temporary name beside its final one.
func createFolder(path string) (*outputFolder, error) {
	if err := checkFolder(path); err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.tmp")
	if err != nil {
		return nil, fmt.Errorf("output %s: %w", path, err)
	}
	return &outputFolder{path: path, tmp: tmp}, nil
}

// write makes one file in it.
func (o *outputFolder) write(name string, content func(io.Writer) error) error {
	f, err := os.OpenFile(filepath.Join(o.tmp, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Join(o.path, name), err)
	}
	err = errors.Join(content(f), f.Sync(), f.Close())
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Join(o.path, name), err)
	}
	return nil
}

// finish gives the folder to the user behind sudo and makes it appear.
func (o *outputFolder) finish() error {
	if err := os.Chmod(o.tmp, 0o755); err != nil {
		return fmt.Errorf("output %s: %w", o.path, err)
	}
	if err := giveToUser(o.tmp); err != nil {
		return err
	}
	if err := checkFolder(o.path); err != nil { // rename would replace an empty folder
		return err
	}
	if err := os.Rename(o.tmp, o.path); err != nil {
		return fmt.Errorf("output %s: %w", o.path, err)
	}
	return nil
}

// discard removes what was written.
func (o *outputFolder) discard() { _ = os.RemoveAll(o.tmp) }

// giveToUser makes a file or folder belong to the user who called sudo, if there is one.
func giveToUser(path string) error {
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
