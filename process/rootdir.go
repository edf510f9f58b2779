// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Root is the open root directory of a process. It remains usable after the process has ended. It is safe for
// concurrent use until Close.
type Root struct {
	dir     *os.File
	process *Process
	user    credentials
}

// Root opens the root directory of the process.
func (p *Process) Root() (*Root, error) {
	user, err := p.credentials()
	if err != nil {
		return nil, err
	}
	fd, err := unix.Open(p.dir()+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, p.wrap("open the root directory of", err)
	}
	return &Root{os.NewFile(uintptr(fd), "/"), p, user}, nil
}

// Close releases the directory.
func (r *Root) Close() error { return r.dir.Close() }

// Open opens a regular file by the path that the process would use. Links in the process's file system cannot lead out of its root
// directory. Because the process chooses the paths and the contents are shown, Open refuses files that the process's user may not
// read, whatever our own rights. It also refuses everything but regular files: opening others can have effects, or block.
func (r *Root) Open(name string) (*os.File, error) {
	place, err := r.locate(name, 0)
	if err != nil {
		return nil, r.process.wrap("open "+name+" of", err)
	}
	defer place.Close()
	if err := r.mayRead(place); err != nil {
		return nil, r.process.wrap("open "+name+" of", err)
	}
	f, err := reopen(place, name)
	if err != nil {
		return nil, r.process.wrap("open "+name+" of", err)
	}
	return f, nil
}

func (r *Root) exists(name string) bool {
	place, err := r.locate(name, unix.O_NOFOLLOW)
	if err != nil {
		return false
	}
	place.Close()
	return true
}

// locate finds the target of a path within the root directory, without opening it (O_PATH of open(2)).
func (r *Root) locate(name string, flags uint64) (*os.File, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC | flags, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(int(r.dir.Fd()), name, &how)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// errNotTheirs means that the user of the process could not read the file.
var errNotTheirs = fmt.Errorf("the process's own user may not read it: %w", unix.EACCES)

// mayRead makes the checks of open(2) for the process: for the file, and for each folder above its real location.
func (r *Root) mayRead(file *os.File) error {
	if r.user.uid == 0 {
		return nil
	}
	if !r.user.has(file, 4) {
		return errNotTheirs
	}
	name, err := r.name(file)
	if err != nil {
		return err
	}
	for dir := path.Dir(name); ; dir = path.Dir(dir) {
		folder, err := r.locate(dir, unix.O_NOFOLLOW|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		allowed := r.user.has(folder, 1)
		folder.Close()
		if !allowed {
			return errNotTheirs
		}
		if dir == "/" {
			return nil
		}
	}
}

// name returns the path of a file below the root directory, without links.
func (r *Root) name(file *os.File) (string, error) {
	var names [2]string
	for i, f := range []*os.File{r.dir, file} {
		var err error
		if names[i], err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd())); err != nil {
			return "", err
		}
	}
	name, below := strings.CutPrefix(names[1], strings.TrimSuffix(names[0], "/"))
	if !below || !strings.HasPrefix(name, "/") {
		return "", errors.New("it is not below the root directory")
	}
	return name, nil
}

// credentials are what the kernel checks when a process opens files (credentials(7)).
type credentials struct {
	uid    uint32
	groups []uint32
}

// credentials reads the file system user and groups, the last of the four values in status (proc(5)).
func (p *Process) credentials() (credentials, error) {
	status, err := p.status()
	if err != nil {
		return credentials{}, p.wrap("read status of", err)
	}
	uids, gids := strings.Fields(status["Uid"]), strings.Fields(status["Gid"])
	if len(uids) < 4 || len(gids) < 4 {
		return credentials{}, fmt.Errorf("read status of pid %d: no users in it", p.PID)
	}
	var c credentials
	for i, text := range append([]string{uids[3], gids[3]}, strings.Fields(status["Groups"])...) {
		id, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return credentials{}, fmt.Errorf("read status of pid %d: %q is no user or group", p.PID, text)
		}
		if i == 0 {
			c.uid = uint32(id)
		} else {
			c.groups = append(c.groups, uint32(id))
		}
	}
	return c, nil
}

// has reports whether the mode of a file grants a right: 4 to read, 1 to search a folder (path_resolution(7)).
func (c *credentials) has(f *os.File, right uint32) bool {
	st, err := f.Stat()
	if err != nil {
		return false
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return false
	case sys.Uid == c.uid:
		right <<= 6
	case slices.Contains(c.groups, sys.Gid):
		right <<= 3
	}
	return sys.Mode&right != 0
}

// Groups returns the process's supplementary groups (credentials(7)).
func (p *Process) Groups() ([]uint32, error) {
	c, err := p.credentials()
	if err != nil {
		return nil, err
	}
	return c.groups[1:], nil
}
