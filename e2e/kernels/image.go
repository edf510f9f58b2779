// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package main

import (
	"bufio"
	"debug/elf"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// pythons are the CPythons whose stacks are compared: the two ways to find the frames of a thread.
var pythons = []string{"3.11", "3.13"}

// image is the root file system of a guest, all of it in memory: that needs no module of the kernel, and no disk. Files lie where
// they lie here, but for what is the project's.
type image struct {
	arch  *architecture
	files map[string]file // by the path in the guest
	err   error           // the first
}

// file is what one path is. Folders are added where they are missing.
type file struct {
	from string      // a file here; empty: text
	text string      // the content, or where a symbolic link leads
	mode fs.FileMode // type and permissions
}

// repository is where the tests find the sources in the guest.
const repository = "/repo"

// buildImage makes the image that kernels boot. Work is the folder of what is built.
func buildImage(work string, arch *architecture, kernels []kernel, torch bool) (*image, error) {
	m := &image{arch: arch, files: map[string]file{}}
	built := filepath.Join(work, "bin")
	for _, b := range [][]string{
		{"build", "-o", filepath.Join(built, "gputrace"), "./cmd/gputrace"},
		{"build", "-o", filepath.Join(built, "guest"), "./e2e/kernels/guest"},
		{"build", "-o", filepath.Join(built, "bench"), "./bench"},
		{"test", "-c", "-o", filepath.Join(built, "e2e.test"), "./e2e"},
	} {
		if err := goTool(arch, b...); err != nil {
			return nil, err
		}
	}
	m.add("/init", "e2e/kernels/init")
	m.add("/guest", filepath.Join(built, "guest"))
	m.add("/usr/bin/gputrace", filepath.Join(built, "gputrace"))
	m.add("/usr/bin/bench", filepath.Join(built, "bench"))
	m.add(repository+"/e2e/e2e.test", filepath.Join(built, "e2e.test"))
	for _, k := range kernels { // Debian has it there; tracing looks at how the kernel was built
		if config := filepath.Join(filepath.Dir(k.file), "config-"+k.Release); exists(config) {
			m.add("/boot/config-"+k.Release, config)
		}
	}
	folder, err := arch.foreign(torch)
	if err != nil {
		return nil, err
	}
	if folder != "" {
		m.addForeign(folder, torch)
	} else {
		m.addInstalled(torch)
	}
	return m, m.err
}

// addInstalled adds what is installed here.
func (m *image) addInstalled(torch bool) {
	for _, name := range []string{"busybox", "bash", "nice"} {
		from, err := exec.LookPath(name)
		m.fail(err)
		m.add("/bin/"+name, from)
	}
	m.addApplets()
	m.addTests(m.value("programs"), m.value("standin"), m.value("python"), m.value("site"))
	m.addContainers()
	for _, minor := range pythons {
		m.addPython(minor)
	}
	if torch {
		m.addTorch()
	}
	m.addLibraries()
}

// goTool runs the go command. What it builds is static: a guest need not have the libraries.
func goTool(arch *architecture, args ...string) error {
	cmd := exec.Command("go", args...)
	cmd.Env, cmd.Stderr = append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+arch.name), os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

func (m *image) fail(err error) {
	if m.err == nil {
		m.err = err
	}
}

// add puts a file into the image, or all that is in a folder.
func (m *image) add(to, from string) {
	m.addBut(to, from)
}

// addBut leaves out what has one of some names.
func (m *image) addBut(to, from string, but ...string) {
	root := from
	if info, err := os.Stat(from); err == nil && info.IsDir() {
		root += "/" // also when it is a link
	}
	m.fail(filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains(but, d.Name()):
			return filepath.SkipDir
		case d.IsDir() || strings.Contains(d.Name(), ".opt-"): // that Python is not run so
			return nil
		}
		info, err := os.Stat(name)
		if err != nil {
			return err
		}
		m.files[path.Join(to, filepath.ToSlash(strings.TrimPrefix(name, from)))] = file{from: name, mode: info.Mode()}
		return nil
	}))
}

func (m *image) link(at, to string) { m.files[at] = file{text: to, mode: fs.ModeSymlink | 0o777} }

func (m *image) script(at, text string) { m.files[at] = file{text: "#!/bin/sh\n" + text, mode: 0o755} }

// addApplets adds the names under which busybox is what scripts need. Bash is for the project's own.
func (m *image) addApplets() {
	out, err := exec.Command("busybox", "--list").Output()
	m.fail(err)
	for applet := range strings.Lines(string(out)) {
		if at := "/bin/" + strings.TrimSpace(applet); m.files[at].from == "" {
			m.link(at, "busybox")
		}
	}
	m.files["/etc/passwd"] = file{text: "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n", mode: 0o644}
}

// addTests adds the programs of testdata, from folders here. What makes them, here as in the tests, is a script that says where they
// are; python and site are where the guest has an interpreter and its packages.
func (m *image) addTests(programs, standin, python, site string) {
	const work = repository + "/testdata/.work"
	m.add(work+"/programs", programs)
	if exists(standin) {
		m.add(work+"/standin/lib", standin)
	}
	for _, name := range []string{"run", "programs/pystacks.py", "standin/standin-run", "workloads"} {
		m.add(repository+"/testdata/"+name, "testdata/"+name)
	}
	m.script(repository+"/testdata/setup.sh", fmt.Sprintf(`case $2 in
kind) echo standin ;;
programs) echo %s/programs ;;
standin) echo %s/standin/lib ;;
python) echo %s ;;
site) echo %s ;;
esac
`, work, work, python, site))
	m.script("/usr/bin/go", "case $1 in\nenv) echo "+repository+"/go.mod ;;\nbuild) cp /usr/bin/gputrace \"$3\" ;; # -o FILE\nesac\n")
}

// addContainers adds podman, what runs its containers, and the default seccomp profile. What it needs of the users' files and of the
// network's is little: it has one user and no network.
func (m *image) addContainers() {
	for _, name := range []string{"podman", "conmon", "runc"} {
		from, err := exec.LookPath(name)
		m.fail(err)
		m.add("/usr/bin/"+name, from)
	}
	m.add("/usr/share/containers", "/usr/share/containers")
	m.add("/etc/containers/policy.json", "/etc/containers/policy.json")
	// A container's root cannot be changed by pivot_root(2) where / is the kernel's own file system in memory.
	m.files["/etc/containers/containers.conf"] = file{text: "[engine]\nno_pivot_root = true\n", mode: 0o644}
	m.files["/etc/group"] = file{text: "root:x:0:\n", mode: 0o644}
}

// value asks testdata/setup.sh.
func (m *image) value(name string) string {
	out, err := exec.Command("testdata/setup.sh", "--print", name).Output()
	m.fail(err)
	return strings.TrimSpace(string(out))
}

// notNeeded are the folders of Python's own that no program here uses.
var notNeeded = []string{"site-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip"}

// addPython adds one of pyenv's, at its own place.
func (m *image) addPython(minor string) {
	out, err := exec.Command("pyenv", "root").Output()
	if err != nil {
		m.fail(fmt.Errorf("find pyenv: %w", err))
		return
	}
	root := strings.TrimSpace(string(out))
	m.script("/usr/bin/pyenv", "echo "+root+"\n")
	found, _ := filepath.Glob(filepath.Join(root, "versions", minor+".*"))
	if len(found) == 0 {
		m.fail(fmt.Errorf("there is no CPython %s of pyenv's", minor))
		return
	}
	home := found[len(found)-1]
	m.link("/usr/bin/python3", filepath.Join(home, "bin/python3"))
	m.add(filepath.Join(home, "bin/python3"), filepath.Join(home, "bin/python"+minor))
	library := filepath.Join(home, "lib/python"+minor)
	m.addBut(library, library, append(notNeeded, filepath.Base(matchOne(library, "config-*")))...)
}

// matchOne returns the first file of a folder that matches.
func matchOne(folder, pattern string) string {
	found, _ := filepath.Glob(filepath.Join(folder, pattern))
	return append(found, "")[0]
}

// torchNeeds are the packages that PyTorch imports, beside itself.
var torchNeeds = []string{
	"torch", "torchgen", "functorch", "typing_extensions.py", "filelock", "fsspec", "jinja2", "markupsafe", "mpmath", "sympy", "networkx",
	"numpy", "numpy.libs",
}

// addTorch adds the Python that has PyTorch, at its own place.
func (m *image) addTorch() {
	python, site := m.value("python"), m.value("site")
	m.add(python, python)
	config := filepath.Join(filepath.Dir(filepath.Dir(python)), "pyvenv.cfg")
	m.add(config, config)
	m.addPackages(site, site)
}

// addPackages adds PyTorch and what it imports.
func (m *image) addPackages(to, site string) {
	for _, name := range torchNeeds {
		m.addBut(filepath.Join(to, name), filepath.Join(site, name), "include", "test", "tests", "share")
	}
}

// loadedLater are libraries that programs load when they run: for backtrace and for the end of a thread.
var loadedLater = []string{"/lib/x86_64-linux-gnu/libgcc_s.so.1"}

// addLibraries adds the libraries that the programs of the image are linked with, and the dynamic linker.
func (m *image) addLibraries() {
	for _, name := range loadedLater {
		m.add(name, name)
	}
	for _, f := range m.files {
		if f.from == "" || !isDynamic(f.from) {
			continue
		}
		out, err := exec.Command("ldd", f.from).Output()
		if err != nil {
			m.fail(fmt.Errorf("ldd %s: %w", f.from, err))
			continue
		}
		for line := range strings.Lines(string(out)) {
			m.addLibrary(line)
		}
	}
}

// addLibrary reads a line of ldd's: "libm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f12)", or without an arrow, of the
// linker. Libraries of the stand-in, and what a program brings with it, are there already.
func (m *image) addLibrary(line string) {
	if _, to, ok := strings.Cut(line, "=>"); ok {
		line = to
	}
	name, _, ok := strings.Cut(strings.TrimSpace(line), " ")
	if _, there := m.files[name]; ok && !there && strings.HasPrefix(name, "/") {
		m.add(name, name)
	}
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// isDynamic reports whether a file is an ELF file that names libraries.
func isDynamic(name string) bool {
	f, err := elf.Open(name)
	if err != nil {
		return false
	}
	defer f.Close()
	libraries, err := f.ImportedLibraries()
	return err == nil && len(libraries) > 0
}

// write writes the image as the kernel takes it for an initramfs: a cpio archive, not compressed, because an emulated CPU takes
// longer to expand it than to read it.
func (m *image) write(to string) error {
	out, err := os.Create(to)
	if err != nil {
		return fmt.Errorf("write the image: %w", err)
	}
	defer out.Close()
	c := cpio{w: bufio.NewWriterSize(out, 1<<20)}
	for _, name := range []string{"/dev", "/proc", "/sys", "/tmp", "/run", "/root"} {
		c.folder(name)
	}
	for _, name := range sortedKeys(m.files) {
		c.folder(path.Dir(name))
		if err := c.file(name, m.files[name]); err != nil {
			return fmt.Errorf("write %s into the image: %w", name, err)
		}
	}
	c.entry("TRAILER!!!", 0, 0)
	if err := c.w.Flush(); err != nil {
		return fmt.Errorf("write the image: %w", err)
	}
	return out.Close()
}

// cpio writes an archive in the format "newc" (Documentation/driver-api/early-userspace/buffer-format.rst of Linux).
type cpio struct {
	w       *bufio.Writer
	inode   int
	folders []string
}

// File types of st_mode (inode(7)).
const (
	typeFolder = 0o040000
	typeFile   = 0o100000
	typeLink   = 0o120000
)

// entry writes a header. The size of what follows is in bytes.
func (c *cpio) entry(name string, mode uint32, size int64) {
	c.inode++
	name = strings.TrimPrefix(name, "/")
	// Magic, inode, mode, user, group, links, time, size, devices and name length; the last is a checksum that is not used.
	n, _ := fmt.Fprintf(c.w, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00", c.inode, mode, 0, 0, 1, 0, size, 0, 0, 0,
		0, len(name)+1, 0, name)
	c.pad(int64(n))
}

// pad fills up to a multiple of four bytes. Flush tells the errors of all writes.
func (c *cpio) pad(n int64) { _, _ = c.w.Write(make([]byte, -n&3)) }

// folder writes a folder and those that it lies in, once.
func (c *cpio) folder(name string) {
	if name == "/" || slices.Contains(c.folders, name) {
		return
	}
	c.folder(path.Dir(name))
	c.folders = append(c.folders, name)
	c.entry(name, typeFolder|0o755, 0)
}

func (c *cpio) file(name string, f file) error {
	mode := uint32(f.mode.Perm()) | typeFile
	if f.mode&fs.ModeSymlink != 0 {
		mode = mode&0o777 | typeLink
	}
	if f.from == "" {
		c.entry(name, mode, int64(len(f.text)))
		_, _ = c.w.WriteString(f.text)
		c.pad(int64(len(f.text)))
		return nil
	}
	in, err := os.Open(f.from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	c.entry(name, mode, info.Size())
	if _, err := io.CopyN(c.w, in, info.Size()); err != nil {
		return err
	}
	c.pad(info.Size())
	return nil
}
