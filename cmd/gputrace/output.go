package main

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
)

// traceName is the recording in the folder of results.
const traceName = "trace.gputrace"

// profileNames are the files that record always writes, beside the recording.
var profileNames = []string{"inuse.pb.gz", "peak.pb.gz", "alloc.pb.gz"}

// resultFiles are the files that a folder of results can hold. With --force a folder that holds nothing else is replaced.
func resultFiles() []string {
	out := append([]string{traceName}, profileNames...)
	for _, f := range exportFormats {
		out = append(out, f.file)
	}
	return out
}

// outputFolder is a folder of results that appears under its name only when it is complete.
type outputFolder struct {
	path  string
	tmp   string
	force bool // a folder of results that has the name already is replaced
}

// checkFolder says, before anything is traced, whether a folder of that name could be written.
func checkFolder(path string, force bool) error {
	if path == stdoutName {
		return fmt.Errorf("output -: the results are several files: give a folder")
	}
	if err := checkParent(path); err != nil {
		return err
	}
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("output %s: %w", path, err)
	case !force:
		return existsError(path)
	case !st.IsDir():
		return fmt.Errorf("output %s exists already and is not a folder: give another with -o", path)
	}
	return checkResults(path)
}

// existsError is the path of an output that is there already.
type existsError string

func (e existsError) Error() string {
	return fmt.Sprintf("output %s exists already: give another with -o, or --force to replace it", string(e))
}

func (e existsError) Unwrap() error { return fs.ErrExist }

// partFolder is the name of a folder with the results of one process of a job.
var partFolder = regexp.MustCompile(`^(rank\d+-)?pid\d+(\.\d+)?$`)

// checkResults says whether a folder has nothing in it but what gputrace wrote.
func checkResults(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return fmt.Errorf("output %s: %w", path, err)
	}
	for _, e := range entries {
		if e.IsDir() && partFolder.MatchString(e.Name()) {
			if err := checkResults(filepath.Join(path, e.Name())); err != nil {
				return err
			}
			continue
		}
		if !e.Type().IsRegular() || !slices.Contains(resultFiles(), e.Name()) {
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
	if err != nil {
		return fmt.Errorf("output %s: its folder: %w", path, err)
	}
	if !st.IsDir() {
		return fmt.Errorf("output %s: %s is not a folder", path, dir)
	}
	return nil
}

// createFolder starts a folder under a temporary name beside its final one.
func createFolder(path string, force bool) (*outputFolder, error) {
	if err := checkFolder(path, force); err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.tmp")
	if err != nil {
		return nil, fmt.Errorf("output %s: %w", path, err)
	}
	return &outputFolder{path: path, tmp: tmp, force: force}, nil
}

// part makes a folder in it for the results of one process. It appears with the whole.
func (o *outputFolder) part(name string) (*outputFolder, error) {
	tmp := filepath.Join(o.tmp, name)
	if err := os.Mkdir(tmp, 0o755); err != nil {
		return nil, fmt.Errorf("output %s: %w", o.path, err)
	}
	return &outputFolder{path: filepath.Join(o.path, name), tmp: tmp}, nil
}

// write makes one of resultFiles in it.
func (o *outputFolder) write(name string, content func(io.Writer) error) error {
	if !slices.Contains(resultFiles(), name) {
		return fmt.Errorf("write %s: not one of the files of a result", filepath.Join(o.path, name))
	}
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
	if err := checkFolder(o.path, o.force); err != nil { // rename would replace an empty folder
		return err
	}
	old := o.tmp + ".old"
	err := os.Rename(o.path, old)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("output %s: %w", o.path, err)
	}
	replaced := err == nil
	if err := os.Rename(o.tmp, o.path); err != nil {
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
