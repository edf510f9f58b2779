// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package local

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/gputrace/gputrace/process"
)

// identity is the user and the environment with which a program is started.
type identity struct {
	user *syscall.Credential // nil: our own
	env  []string            // nil: our own
	home string              // home folder of the user; empty: not known
}

// ofSudo are variables that sudo sets for the program, or takes from the system's settings (sudo(8), "ENVIRONMENT"):
// for these, the caller's values count. Other variables that differ were set on sudo's command line.
var ofSudo = []string{"HOME", "LOGNAME", "MAIL", "PATH", "PWD", "SHELL", "SHLVL", "TERM", "USER", "_"}

// identity determines the user and environment of the program. sudo changes the user and strips the environment,
// including a virtual environment and the search path of libraries; identity restores both for the caller's program.
func (l *live) identity() (*identity, error) {
	as, err := &identity{env: os.Environ()}, error(nil)
	if caller := sudoCaller(); caller != nil {
		as = caller
	}
	if name := l.options.User; name != "" {
		before := as.user
		if as.user, as.home, err = lookUp(name); err != nil {
			return nil, err
		}
		if before == nil || before.Uid != as.user.Uid {
			as.setUser(name)
		} else {
			as.user = before
		}
	}
	if as.user != nil && int(as.user.Uid) == os.Geteuid() {
		as.user = nil
	}
	if as.user != nil && os.Geteuid() != 0 {
		return nil, errors.New("--user: only root can run a program as another user: begin with sudo gputrace run --user NAME")
	}
	for _, e := range l.options.Env {
		name, value, set := strings.Cut(e, "=")
		if !set {
			value = os.Getenv(name)
		}
		as.set(name, value)
	}
	return as, nil
}

// String returns the user for people; empty: ourselves.
func (as *identity) String() string {
	if as.user == nil {
		return ""
	}
	id := strconv.FormatUint(uint64(as.user.Uid), 10)
	if u, err := user.LookupId(id); err == nil {
		id = u.Username
	}
	return " (user " + id + ")"
}

// sudoCaller returns the identity of the caller of the sudo that started this program. It returns nil if sudo did not
// start it directly; the user of a shell below sudo has chosen to be root.
func sudoCaller() *identity {
	uid, err1 := strconv.ParseUint(os.Getenv("SUDO_UID"), 10, 32)
	gid, err2 := strconv.ParseUint(os.Getenv("SUDO_GID"), 10, 32)
	if err1 != nil || err2 != nil || os.Geteuid() != 0 {
		return nil
	}
	sudo := ancestor(os.Getppid())
	if sudo == nil {
		return nil
	}
	as := &identity{user: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	if u, err := user.LookupId(strconv.FormatUint(uid, 10)); err == nil {
		as.home = u.HomeDir
		as.user.Groups = groupsOf(u)
	}
	if shell, err := process.Open(sudo.Parent()); err == nil {
		if u, err := shell.UID(); err == nil && u == int(uid) {
			if groups, err := shell.Groups(); err == nil {
				as.user.Groups = groups
			}
		}
	}
	as.env = callerEnvironment(sudo, os.Environ())
	return as
}

// ancestor returns the outermost of the consecutive processes named sudo, from the given process upwards: sudo starts
// another instance of itself if the program has its own terminal. nil: the process is not sudo.
func ancestor(pid int) (sudo *process.Process) {
	const longest = 8
	for range longest {
		p, err := process.Open(pid)
		if err != nil || p.Name() != "sudo" {
			break
		}
		sudo, pid = p, p.Parent()
	}
	return sudo
}

// callerEnvironment returns the environment of sudo's caller, with the variables that its command line set for the program.
func callerEnvironment(sudo *process.Process, own []string) []string {
	theirs, err := sudo.Environ()
	if err != nil || len(theirs) == 0 {
		return own
	}
	as := &identity{env: theirs}
	for _, e := range own {
		name, value, _ := strings.Cut(e, "=")
		if !slices.Contains(ofSudo, name) && !strings.HasPrefix(name, "SUDO_") && as.value(name) != value {
			as.set(name, value)
		}
	}
	return as.env
}

// lookUp finds a user by name or number.
func lookUp(name string) (*syscall.Credential, string, error) {
	u, err := user.Lookup(name)
	if err != nil {
		u, err = user.LookupId(name)
	}
	if err != nil {
		return nil, "", fmt.Errorf("--user: there is no user %q", name)
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid), Groups: groupsOf(u)}, u.HomeDir, errors.Join(err1, err2)
}

func groupsOf(u *user.User) (out []uint32) {
	ids, _ := u.GroupIds() // otherwise the user has only the primary group
	for _, id := range ids {
		if n, err := strconv.ParseUint(id, 10, 32); err == nil {
			out = append(out, uint32(n))
		}
	}
	return out
}

// setUser sets the user's variables in the environment, as a login would.
func (as *identity) setUser(name string) {
	as.set("USER", name)
	as.set("LOGNAME", name)
	if as.home != "" {
		as.set("HOME", as.home)
	}
}

// set sets a variable.
func (as *identity) set(name, value string) {
	as.env = slices.DeleteFunc(slices.Clone(as.env), func(e string) bool { return strings.HasPrefix(e, name+"=") })
	as.env = append(as.env, name+"="+value)
}

// value returns the value of a variable; empty if it is not set.
func (as *identity) value(name string) string {
	for _, e := range as.env {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v
		}
	}
	return ""
}

// attributes returns the attributes that start a process as the user; nil: as ourselves.
func (as *identity) attributes() *syscall.SysProcAttr {
	if as.user == nil {
		return nil
	}
	return &syscall.SysProcAttr{Credential: as.user}
}

// lookPath is exec.LookPath with the search path of the environment.
func (as *identity) lookPath(name string) (string, error) {
	if strings.Contains(name, "/") || as.value("PATH") == os.Getenv("PATH") {
		return exec.LookPath(name)
	}
	for _, dir := range filepath.SplitList(as.value("PATH")) {
		file := filepath.Join(dir, name)
		if st, err := os.Stat(file); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", &exec.Error{Name: name, Err: exec.ErrNotFound}
}
