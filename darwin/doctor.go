// SPDX-License-Identifier: Apache-2.0

package darwin

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"

	"github.com/gputrace/gputrace/darwin/macho"
	"github.com/gputrace/gputrace/darwin/shim"
)

// Examination is what can be said beforehand of tracing a program on this Mac.
type Examination struct {
	Program *macho.Program // nil: Err
	Err     error
	Script  bool // what was named is a script, and Program what runs it
	Insert  macho.Verdict
	DTrace  macho.Verdict
	HasTool bool // there is a dtrace
	checks  []check
}

// Examine looks at the file of a program, without running it: a name as a shell takes it, or a path.
func Examine(command string) *Examination {
	return examine(command, askSystem)
}

func examine(command string, ask asker) *Examination {
	e := &Examination{checks: checkHost(ask)}
	_, err := exec.LookPath("dtrace")
	e.HasTool = err == nil
	e.checks = append(e.checks, checkTool(e.HasTool))
	p, err := resolve([]string{command})
	if err != nil {
		e.Err = err
		return e
	}
	e.Script = len(p.args) > 1
	if c, ok := checkPython(p.path); ok {
		e.checks = append(e.checks, c)
	}
	if e.Program, e.Err = macho.Open(p.path); e.Err != nil {
		return e
	}
	e.Insert, e.DTrace = e.Program.Insert(), e.Program.DTrace(runtime.GOARCH == "arm64")
	return e
}

// Works reports whether gputrace run would see the program's memory.
func (e *Examination) Works() bool { return e.Err == nil && e.Insert.Works }

// Write writes it for people. The last line is the verdict.
func (e *Examination) Write(w io.Writer) error {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "  %-9s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("gputrace", "%s/%s, library of %d bytes", runtime.GOOS, runtime.GOARCH, len(shim.Library))
	for i := range e.checks {
		c := &e.checks[i]
		writeVerdict(line, c.name, macho.Verdict{Works: c.works, Why: c.why, Fix: c.cure})
	}
	switch {
	case errors.Is(e.Err, macho.ErrNotMachO):
		line("program", "%v", e.Err)
	case e.Err != nil:
		line("program", "not found: %v", e.Err)
	default:
		e.writeProgram(line)
	}
	verdict := "gputrace run will see the program's memory"
	if !e.Works() {
		verdict = "gputrace run will not see the program's memory"
	}
	b.WriteString(verdict + "\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func (e *Examination) writeProgram(line func(name, format string, args ...any)) {
	p := e.Program
	path := p.Path
	if e.Script {
		path += ", which runs the script"
	}
	line("program", "%s", path)
	line("built for", "%s", strings.Join(p.Archs, ", "))
	signed := "not signed"
	switch {
	case p.Signed && p.AdHoc:
		signed = "signed ad hoc"
	case p.Signed:
		signed = "signed"
	}
	if p.Hardened {
		signed += ", hardened"
	}
	if len(p.Entitlements) > 0 {
		signed += ", allows " + strings.Join(p.Entitlements, ", ")
	}
	line("signature", "%s", signed)
	writeVerdict(line, "run", e.Insert)
	writeVerdict(line, "attach", e.DTrace)
}

func writeVerdict(line func(name, format string, args ...any), name string, v macho.Verdict) {
	mark := "ok"
	if !v.Works {
		mark = "no"
	}
	line(name, "%s: %s", mark, v.Why)
	if v.Fix != "" {
		line("", "%s", v.Fix)
	}
}
