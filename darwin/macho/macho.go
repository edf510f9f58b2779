// SPDX-License-Identifier: Apache-2.0

// Package macho says of a program for macOS whether a library of ours would be loaded into it, and whether dtrace may attach to it, by
// what is in its file. It reads files on any system.
package macho

import (
	"bytes"
	"debug/macho"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

// Flags of a code signature (xnu, osfmk/kern/cs_blobs.h).
const (
	flagAdHoc    = 0x2
	flagRestrict = 0x800
	flagRuntime  = 0x10000
)

// Blobs of a code signature (the same file). They are big endian.
const (
	magicSuperBlob     = 0xfade0cc0
	magicCodeDirectory = 0xfade0c02
	magicEntitlements  = 0xfade7171

	loadCodeSignature = 0x1d // LC_CODE_SIGNATURE, mach-o/loader.h
	maxSignature      = 16 << 20
	maxBlobs          = 64
)

// Entitlements that a hardened program needs (Apple, "Hardened Runtime").
const (
	AllowVariables    = "com.apple.security.cs.allow-dyld-environment-variables"
	AllowLibraries    = "com.apple.security.cs.disable-library-validation"
	AllowTaskForPorts = "com.apple.security.get-task-allow"
)

const subtypeARM64E = 2 // CPU_SUBTYPE_ARM64E, mach/machine.h

// Program is what is known of a program's file.
type Program struct {
	Path         string
	Archs        []string // "arm64", "arm64e", "x86_64"
	Signed       bool
	AdHoc        bool // signed by nobody
	Hardened     bool
	Restricted   bool // by its signature, a segment __RESTRICT, or set-user-ID
	Entitlements []string
	System       string // the folder of macOS that it is in; empty: none
}

// Verdict says whether something works, and what to do when it does not.
type Verdict struct {
	Works bool
	Why   string // for people
	Fix   string // a command; empty: there is none
}

// ErrNotMachO is of a file that is no program for macOS.
var ErrNotMachO = errors.New("no program for macOS")

// Open reads a program.
func Open(path string) (*Program, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p, err := Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	p.Path, p.System = path, SystemFolder(path)
	if st, err := f.Stat(); err == nil && st.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
		p.Restricted = true
	}
	return p, nil
}

// Read reads a program, whose path is not known.
func Read(r io.ReaderAt) (*Program, error) {
	p := &Program{}
	fat, err := macho.NewFatFile(r)
	if err == nil {
		for i := range fat.Arches {
			a := &fat.Arches[i]
			p.add(a.File, io.NewSectionReader(r, int64(a.Offset), int64(a.Size)))
		}
		return p, nil
	}
	f, thin := macho.NewFile(r)
	if thin != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotMachO, thin)
	}
	p.add(f, r)
	return p, nil
}

// systemFolders are those whose programs System Integrity Protection shields (Apple, "About System Integrity Protection"); what is below
// /usr/local is the user's.
var systemFolders = []string{"/bin/", "/sbin/", "/usr/", "/System/"}

// SystemFolder is the folder of macOS itself that a path is in; empty: none.
func SystemFolder(path string) string {
	if strings.HasPrefix(path, "/usr/local/") {
		return ""
	}
	for _, f := range systemFolders {
		if strings.HasPrefix(path, f) {
			return f
		}
	}
	return ""
}

func (p *Program) add(f *macho.File, r io.ReaderAt) {
	p.Archs = append(p.Archs, arch(f))
	if f.Segment("__RESTRICT") != nil {
		p.Restricted = true
	}
	for _, l := range f.Loads {
		raw := l.Raw()
		if len(raw) >= 16 && f.ByteOrder.Uint32(raw) == loadCodeSignature {
			size := min(f.ByteOrder.Uint32(raw[12:]), maxSignature)
			b, err := io.ReadAll(io.NewSectionReader(r, int64(f.ByteOrder.Uint32(raw[8:])), int64(size)))
			if err == nil {
				p.sign(b)
			}
		}
	}
}

func arch(f *macho.File) string {
	switch {
	case f.Cpu == macho.CpuAmd64:
		return "x86_64"
	case f.Cpu == macho.CpuArm64 && f.SubCpu&0xff == subtypeARM64E:
		return "arm64e"
	case f.Cpu == macho.CpuArm64:
		return "arm64"
	}
	return f.Cpu.String()
}

// sign reads a signature: a blob of blobs.
func (p *Program) sign(b []byte) {
	be := binary.BigEndian
	if len(b) < 12 || be.Uint32(b) != magicSuperBlob {
		return
	}
	n := min(be.Uint32(b[8:]), maxBlobs)
	for i := range int(n) {
		at := 12 + 8*i
		if at+8 > len(b) {
			return
		}
		offset := be.Uint32(b[at+4:])
		if uint64(offset)+16 > uint64(len(b)) {
			continue
		}
		blob := b[offset:]
		if size := be.Uint32(blob[4:]); uint64(size) <= uint64(len(blob)) {
			blob = blob[:size]
		}
		p.blob(blob)
	}
}

func (p *Program) blob(b []byte) {
	be := binary.BigEndian
	if len(b) < 16 {
		return
	}
	switch be.Uint32(b) {
	case magicCodeDirectory:
		flags := be.Uint32(b[12:])
		p.Signed = true
		p.AdHoc = flags&flagAdHoc != 0
		p.Hardened = p.Hardened || flags&flagRuntime != 0
		p.Restricted = p.Restricted || flags&flagRestrict != 0
	case magicEntitlements:
		for _, name := range []string{AllowVariables, AllowLibraries, AllowTaskForPorts} {
			if granted(b[8:], name) && !p.has(name) {
				p.Entitlements = append(p.Entitlements, name)
			}
		}
	}
}

// granted finds <key>name</key><true/> in a property list.
func granted(plist []byte, name string) bool {
	_, rest, found := bytes.Cut(plist, []byte("<key>"+name+"</key>"))
	return found && bytes.HasPrefix(bytes.TrimSpace(rest), []byte("<true/>"))
}

func (p *Program) has(entitlement string) bool {
	for _, e := range p.Entitlements {
		if e == entitlement {
			return true
		}
	}
	return false
}

func (p *Program) hasArch(name string) bool {
	for _, a := range p.Archs {
		if a == name {
			return true
		}
	}
	return false
}

// Resigned is a command that signs a copy of one's own anew with what tracing needs.
func (p *Program) resigned() string {
	return fmt.Sprintf("codesign --force --sign - --entitlements gputrace.entitlements %s   # gputrace.entitlements: %s, %s and %s, each "+
		"<true/>",
		p.Path, AllowVariables, AllowLibraries, AllowTaskForPorts)
}

const elsewhere = "use a Python of Homebrew, conda, uv or pyenv"

// Insert says whether dyld would load a library of ours into the program (dyld, Loader and DyldProcessConfig; docs/use/macos.md).
func (p *Program) Insert() Verdict {
	switch {
	case p.System != "":
		return Verdict{Why: fmt.Sprintf("it is a program of macOS itself (%s), into which no library is let: %s", p.System, elsewhere)}
	case p.Restricted:
		return Verdict{Why: "it is restricted: dyld removes DYLD_INSERT_LIBRARIES", Fix: p.resigned()}
	case p.Hardened && (!p.has(AllowVariables) || !p.has(AllowLibraries)):
		return Verdict{Why: "it is hardened and does not allow libraries of others", Fix: p.resigned()}
	case !p.hasArch("arm64") && !p.hasArch("x86_64"):
		return Verdict{Why: fmt.Sprintf("it is for %s only; the library is for arm64 and x86_64", strings.Join(p.Archs, " and "))}
	}
	return Verdict{Works: true, Why: "nothing keeps libraries out of it"}
}

// DTrace says whether dtrace of root may attach, while System Integrity Protection is on. translated: the processor is Apple's, so that
// a program for x86_64 alone runs under Rosetta.
func (p *Program) DTrace(translated bool) Verdict {
	switch {
	case p.System != "":
		return Verdict{Why: fmt.Sprintf("it is a program of macOS itself (%s), to which dtrace may not attach: %s", p.System, elsewhere)}
	case p.Restricted:
		return Verdict{Why: "it is restricted: dtrace may not attach", Fix: p.resigned()}
	case p.Hardened && !p.has(AllowTaskForPorts):
		return Verdict{Why: "it is hardened and does not have the entitlement " + AllowTaskForPorts, Fix: p.resigned()}
	case translated && !p.hasArch("arm64") && p.hasArch("x86_64"):
		return Verdict{Why: "it is for x86_64 and runs under Rosetta, where dtrace cannot attach: use a Python for arm64"}
	}
	return Verdict{Works: true, Why: "dtrace may attach as root"}
}
