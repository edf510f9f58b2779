// SPDX-License-Identifier: Apache-2.0

package darwin

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/gputrace/gputrace/darwin/macho"
)

// check is something that was looked at, in a line, and what to do when it is not well.
type check struct {
	name, why string
	works     bool
	cure      string // empty: there is nothing to do
}

// asker runs a program of macOS and is given what it prints on standard output.
type asker func(name string, args ...string) (string, error)

func askSystem(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).Output()
	return string(out), err
}

// checkHost looks at the Mac.
func checkHost(ask asker) []check {
	return []check{checkVersion(ask), checkGPU(ask), checkTranslated(ask), checkSIP(ask)}
}

// leastMajor and leastMinor are of the first macOS with PyTorch's MPS (PyTorch, "MPS backend": macOS 12.3).
const leastMajor, leastMinor = 12, 3

func checkVersion(ask asker) check {
	c := check{name: "macOS", why: "its version is not known: sw_vers says nothing"}
	out, err := ask("sw_vers", "-productVersion")
	var major, minor int
	if n, _ := fmt.Sscanf(strings.TrimSpace(out), "%d.%d", &major, &minor); err != nil || n == 0 {
		return c
	}
	c.why = fmt.Sprintf("%d.%d", major, minor)
	c.works = major > leastMajor || major == leastMajor && minor >= leastMinor
	if !c.works {
		c.why += ", and PyTorch's MPS needs 12.3"
		c.cure = "update macOS"
	}
	return c
}

// What ioreg prints of a GPU: "model" = "Apple M1 Pro", or the letters in <> as it was registered.
var gpuModel = regexp.MustCompile(`(?m)^[ |]*"model" = (?:"([^"]+)"|<"([^"]+)">)`)

func checkGPU(ask asker) check {
	c := check{name: "GPU", why: "there is none that Metal can use, so that torch.backends.mps.is_available() is False",
		cure: "run on a Mac itself, not in a virtual machine without a GPU"}
	out, err := ask("ioreg", "-r", "-d", "1", "-w", "0", "-c", "IOAccelerator")
	if err != nil {
		c.why, c.cure = "it is not known: ioreg failed", ""
		return c
	}
	if m := gpuModel.FindStringSubmatch(out); m != nil {
		c.works, c.why, c.cure = true, m[1]+m[2], ""
	} else if strings.Contains(out, "<class ") {
		c.works, c.why, c.cure = true, "its model is not known", ""
	}
	return c
}

// checkTranslated: a gputrace for x86_64 on an Apple processor runs, as the programs that it starts then do, under Rosetta.
func checkTranslated(ask asker) check {
	out, err := ask("sysctl", "-n", "sysctl.proc_translated")
	if err == nil && strings.TrimSpace(out) == "1" {
		return check{name: "Rosetta", why: "this gputrace is for x86_64 and is translated", cure: "install gputrace for arm64"}
	}
	return check{name: "Rosetta", why: "gputrace is not translated", works: true}
}

// checkSIP reads csrutil status: "System Integrity Protection status: enabled.", "disabled.", or "unknown (Custom Configuration)." with a
// line for each part.
func checkSIP(ask asker) check {
	c := check{name: "SIP", works: true}
	out, err := ask("csrutil", "status")
	_, status, found := strings.Cut(out, "System Integrity Protection status: ")
	switch {
	case err != nil || !found:
		c.why = "whether it is on is not known: csrutil says nothing"
	case strings.HasPrefix(status, "enabled"):
		c.why = "on, which gputrace run needs not be changed; dtrace may not attach to programs of macOS"
	case strings.HasPrefix(status, "disabled"):
		c.why = "off: dtrace may attach to any program"
	case strings.Contains(status, "DTrace Restrictions: disabled"):
		c.why = "on but for dtrace"
	case strings.Contains(status, "DTrace Restrictions: enabled"):
		c.why = "partly on, and dtrace is restricted"
	default:
		c.why = "set by hand, in a way that is not known: " + strconv.Quote(strings.TrimSpace(strings.SplitN(status, "\n", 2)[0]))
	}
	return c
}

// pythonKinds are who made a Python, by a part of its path; the first that fits.
var pythonKinds = []struct{ part, kind string }{
	{"/Library/Developer/CommandLineTools/", apple}, {"/Applications/Xcode", apple},
	{"/Python.framework/Versions/", "of python.org"}, {"/Cellar/python", "of Homebrew"}, {"/homebrew/", "of Homebrew"},
	{"/.pyenv/versions/", "of pyenv"}, {"/uv/python/", "of uv"}, {"/conda", "of conda"}, {"/miniconda", "of conda"}, {"/anaconda", "of conda"},
	{"/miniforge", "of conda"}, {"/mambaforge", "of conda"},
}

const apple = "of Apple's developer tools"

// pythonKind is whose Python a path leads to; empty: not known. resolved is the path without links: a virtual environment's leads to one.
func pythonKind(path, resolved string) string {
	if macho.SystemFolder(resolved) != "" {
		return "of macOS"
	}
	for _, p := range []string{resolved, path} {
		for _, k := range pythonKinds {
			if strings.Contains(p, k.part) {
				if k.kind == "of python.org" && strings.Contains(p, "/Cellar/") {
					return "of Homebrew"
				}
				return k.kind
			}
		}
	}
	return ""
}

// checkPython is of a program that is a Python; ok is false for another.
func checkPython(path string) (c check, ok bool) {
	if !strings.HasPrefix(strings.ToLower(filepath.Base(path)), "python") {
		return c, false
	}
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		resolved = path
	}
	kind := pythonKind(path, resolved)
	c = check{name: "Python", why: kind, works: true}
	switch kind {
	case "":
		c.why = "it is not known who made it"
	case "of macOS", apple:
		c.works = false
		c.why += ", into which no library is let, and which has no PyTorch"
		c.cure = "install one: brew install python, or uv python install 3.14"
	}
	return c, true
}

// checkTool says whether there is a dtrace.
func checkTool(has bool) check {
	if has {
		return check{name: "dtrace", why: "there is one in PATH", works: true}
	}
	return check{name: "dtrace", why: "there is none in PATH", cure: "use gputrace run, or as root PATH=/usr/sbin:$PATH, where macOS has it"}
}
