// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// architecture is a processor that kernels are booted for.
type architecture struct {
	name      string   // as Go and Debian name it
	emulator  []string // QEMU, with its machine
	processor string   // all that QEMU can emulate of it
	console   string   // the serial line
	kernel    string   // parameters of the kernel
	libraries string   // folder of the guest's libraries
	object    string   // the kernel side
}

// architectures by name. Pointer authentication is emulated by a hash that is quicker than the processors' own.
var architectures = map[string]*architecture{
	"amd64": {
		name: "amd64", emulator: []string{"qemu-system-x86_64", "-machine", "q35"}, processor: "max", console: "ttyS0",
		kernel: "no_timer_check mitigations=off", libraries: "/lib/x86_64-linux-gnu", object: "bpf/trace_x86_bpfel.o",
	},
	"arm64": {
		name: "arm64", emulator: []string{"qemu-system-aarch64", "-machine", "virt,gic-version=3"}, processor: "max,pauth-impdef=on",
		console: "ttyAMA0", libraries: "/lib/aarch64-linux-gnu", object: "bpf/trace_arm64_bpfel.o",
	},
}

// command is QEMU's, for a kernel that begins with an image in memory.
func (a *architecture) command(o *options, kernel, image string, memory int, parameters string) []string {
	processor := o.processor
	if processor == "" {
		processor = a.processor
	}
	return slices.Concat(a.emulator, []string{
		"-accel", "tcg,thread=multi,tb-size=512", "-cpu", processor, "-smp", strconv.Itoa(o.cpus), "-m", strconv.Itoa(memory), "-display", "none",
		"-monitor", "none", "-serial", "stdio", "-nic", "none", "-no-reboot", "-kernel", kernel, "-initrd", image,
		"-append", fmt.Sprintf("console=%s oops=panic panic=-1 loglevel=4 nowatchdog %s %s", a.console, a.kernel, parameters),
	})
}

// foreign is what a guest of another processor runs: the folder that testdata/debian-arm64.sh prints. Empty: what is installed here.
func (a *architecture) foreign(torch bool) (string, error) {
	if a.name == "amd64" {
		return "", nil
	}
	args := []string{}
	if torch {
		args = append(args, "--torch")
	}
	cmd := exec.Command("testdata/debian-arm64.sh", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("testdata/debian-arm64.sh: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// addForeign adds what a guest of another processor runs: a shell, libraries, the programs, CPython and PyTorch.
func (m *image) addForeign(folder string, torch bool) {
	root := filepath.Join(folder, "root")
	m.add("/bin/busybox", filepath.Join(root, "usr/bin/busybox"))
	m.add("/bin/bash", filepath.Join(root, "usr/bin/bash"))
	m.addApplets()
	m.add(m.arch.libraries, filepath.Join(root, "usr/lib/aarch64-linux-gnu"))
	m.add("/lib/ld-linux-aarch64.so.1", filepath.Join(root, "usr/lib/aarch64-linux-gnu/ld-linux-aarch64.so.1"))
	m.addForeignPython(filepath.Join(folder, "old/root"), "3.11")
	m.addForeignPython(root, "3.13")
	m.addTests(filepath.Join(folder, "programs"), filepath.Join(folder, "standin/lib"), pyenvOfGuest+"/versions/3.11.0/bin/python3",
		sitesOfGuest)
	if torch {
		m.addPackages(sitesOfGuest, filepath.Join(folder, "site"))
	}
}

// Where a guest of another processor has its interpreters, in folders as pyenv makes them, and their packages.
const (
	pyenvOfGuest = "/pyenv"
	sitesOfGuest = pyenvOfGuest + "/versions/3.11.0/lib/python3.11/dist-packages"
)

// addForeignPython adds one of Debian's. It finds its library beside it.
func (m *image) addForeignPython(root, minor string) {
	m.script("/usr/bin/pyenv", "echo "+pyenvOfGuest+"\n")
	home := pyenvOfGuest + "/versions/" + minor + ".0"
	m.link("/usr/bin/python3", home+"/bin/python3")
	m.add(home+"/bin/python3", filepath.Join(root, "usr/bin/python"+minor))
	m.addBut(home+"/lib/python"+minor, filepath.Join(root, "usr/lib/python"+minor), notNeeded...)
}
