// SPDX-License-Identifier: Apache-2.0

// Package kept writes the out-of-memory folder, which survives even if the recording is lost.
package kept

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/internal/output"
)

// Make creates the folder of a failure with the recording in it: RESULTS.oomN, where N is the first free number from
// number on. When it returns, both are on the disk.
func Make(file, results string, number int) (string, error) {
	folder := ""
	for ; ; number++ {
		folder = fmt.Sprintf("%s.oom%d", results, number)
		err := os.Mkdir(folder, 0o755)
		if err == nil {
			break
		}
		if !errors.Is(err, os.ErrExist) {
			return "", fmt.Errorf("keep what failed: %w", err)
		}
	}
	to := filepath.Join(folder, export.TraceName)
	if err := os.Link(file, to); err != nil {
		if err = Copy(file, to); err != nil { // the file system has no links
			return "", fmt.Errorf("keep what failed: %w", err)
		}
	}
	return folder, errors.Join(output.GiveToUser(folder), syncFolder(folder), syncFolder(filepath.Dir(folder)))
}

func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Write writes the files of a folder; each appears complete or not at all.
func Write(folder string) error {
	in, err := export.Open(filepath.Join(folder, export.TraceName), nil)
	if err != nil {
		return fmt.Errorf("say why memory ran out: %w", err)
	}
	defer in.Close()
	for name, asJSON := range map[string]bool{"oom.txt": false, "oom.json": true} {
		err := replaceFile(filepath.Join(folder, name), func(w io.Writer) error { return in.WriteOOM(w, &export.OOMOptions{JSON: asJSON}) })
		if err != nil {
			return fmt.Errorf("say why memory ran out: %w", err)
		}
	}
	return syncFolder(folder)
}

// replaceFile writes a file to the disk before giving it its name.
func replaceFile(path string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".oom-*")
	if err != nil {
		return err
	}
	err = write(f)
	if err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err == nil {
		err = errors.Join(output.GiveToUser(f.Name()), os.Rename(f.Name(), path))
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// Copy copies a file to another disk. If it fails, it removes the incomplete copy.
func Copy(from, to string) error {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	if err = errors.Join(err, w.Sync(), w.Close()); err != nil {
		return errors.Join(err, os.Remove(to))
	}
	return nil
}

// Follow links the current recording into a folder, if the recording has become another file because its oldest part
// was dropped. If it cannot, the version from the failure remains.
func Follow(folder, file string) error {
	to := filepath.Join(folder, export.TraceName)
	was, err1 := os.Stat(to)
	is, err2 := os.Stat(file)
	if err1 != nil || err2 != nil || os.SameFile(was, is) || os.Link(file, to+".new") != nil {
		return nil
	}
	return os.Rename(to+".new", to)
}
