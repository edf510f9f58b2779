// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// kernel is a kernel that was fetched.
type kernel struct {
	Series  string // "6.12"
	Release string // what uname -r says
	file    string // its image
	why     string // it could not be had
}

// result is what a guest has said.
type result struct {
	kernel
	Facts    map[string]string
	Programs map[string]int // instructions that the verifier has looked at
	Checks   []checked
	Took     time.Duration
	// patching: the kernel met a breakpoint that it had put into its own code for a moment, and has taken out again (a static branch that it
	// switched). QEMU can run the code as it was translated before. What uprobes put is in programs.
	patching bool
}

// checked is one check.
type checked struct {
	Name, Detail string
	OK           bool
	Seconds      int
	log          []string
}

// torchMemory is what PyTorch takes more, MiB: its files lie in memory, for a while twice.
const torchMemory = 4096

// trouble is how the kernel begins to tell of a fault of its own. That something took long is none: it is emulated.
var trouble = regexp.MustCompile(`BUG: (unable|kernel|page|scheduling|sleeping|Bad|stack|KASAN)|kernel BUG at |Oops: |general ` +
	`protection fault`)

// patched is how the kernel tells of a breakpoint in its own code; the selector is that of the kernel.
var patched = regexp.MustCompile(`(?s)Oops: int3: .{0,800}?RIP: 0010:`)

// boot runs a kernel in QEMU until it powers off, and reads what its guest says. The serial line is kept in the file log. Guest is
// what it shall do: "", "refused" or "torch". A kernel that does not come as far as the guest is booted once more: on a busy machine an
// emulated clock can be too late for it. So is one that stumbles over its own patching.
func boot(ctx context.Context, k kernel, o *options, guest, image, log string) (*result, error) {
	r, err := bootOnce(ctx, k, o, guest, image, log)
	why := ""
	switch {
	case err != nil:
	case r.Facts["release"] == "":
		why = "did not come up"
	case r.patching:
		why = "met a breakpoint of its own, as happens when it is emulated"
	}
	if why != "" {
		fmt.Printf("Linux %s %s, once more\n", k.Release, why)
		r, err = bootOnce(ctx, k, o, guest, image, log)
	}
	return r, err
}

func bootOnce(ctx context.Context, k kernel, o *options, guest, image, log string) (*result, error) {
	ctx, cancel := context.WithTimeout(ctx, o.limit)
	defer cancel()
	begin := time.Now()
	var serial bytes.Buffer
	memory := o.memory
	if guest == "torch" {
		memory += torchMemory
	}
	// Every CPU that QEMU can emulate; the clock of -cpu max is right by itself, tsc=reliable makes it run too fast.
	parameters := "KERNELS_GUEST=" + guest + " KERNELS_CHECKS=" + o.checks + " " + o.parameters
	args := o.arch.command(o, k.file, image, memory, parameters)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	file, err := os.Create(log)
	if err != nil {
		return nil, fmt.Errorf("keep the serial line: %w", err)
	}
	defer file.Close()
	cmd.Stdout = io.MultiWriter(&serial, file)
	cmd.Stderr = cmd.Stdout
	err = cmd.Run()
	if ctx.Err() != nil {
		err = fmt.Errorf("it did not end in %s", o.limit)
	}
	r := &result{kernel: k, Facts: map[string]string{}, Programs: map[string]int{}, Took: time.Since(begin),
		patching: patched.MatchString(serial.String())}
	r.parse(serial.String())
	if at := trouble.FindStringIndex(serial.String()); at != nil {
		r.Checks = append(r.Checks, checked{Name: "kernel", Detail: "it is in trouble itself", log: firstLines(serial.String()[at[0]:], 50)})
	}
	if err == nil && r.Facts["end"] == "" {
		err = errors.New("the guest ended before all checks were made")
	}
	if err != nil {
		r.Checks = append(r.Checks, checked{Name: "boot", Detail: err.Error(), log: lastLines(serial.String(), 20)})
	}
	return r, nil
}

// parse reads the lines of e2e/kernels/guest. Others are the kernel's.
func (r *result) parse(serial string) {
	s := bufio.NewScanner(strings.NewReader(serial))
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		kind, rest, _ := strings.Cut(strings.TrimSpace(s.Text()), " ")
		switch kind {
		case "FACT":
			name, value, _ := strings.Cut(rest, " ")
			r.Facts[name] = value
		case "PROGRAM":
			name, n, _ := strings.Cut(rest, " ")
			r.Programs[name], _ = strconv.Atoi(n)
		case "CHECK":
			r.Checks = append(r.Checks, parseCheck(rest))
		case "LOG":
			if n := len(r.Checks); n > 0 {
				r.Checks[n-1].log = append(r.Checks[n-1].log, rest)
			}
		}
	}
}

// parseCheck reads "<name> ok|FAIL <seconds> <words>". A line that is cut is a failure.
func parseCheck(line string) checked {
	for _, word := range []string{" ok ", " FAIL "} {
		if name, rest, found := strings.Cut(line, word); found {
			seconds, detail, _ := strings.Cut(rest, " ")
			n, _ := strconv.Atoi(seconds)
			return checked{Name: name, Detail: detail, OK: word == " ok ", Seconds: n}
		}
	}
	return checked{Name: line, Detail: "the line is cut"}
}

func (r *result) failed() bool {
	for _, c := range r.Checks {
		if !c.OK {
			return true
		}
	}
	return len(r.Checks) == 0
}

func firstLines(s string, n int) []string {
	lines := strings.Split(s, "\n")
	return lines[:min(len(lines), n)]
}

func lastLines(s string, n int) []string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[max(0, len(lines)-n):]
}
