// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

// Command guest runs in a kernel that e2e/kernels has booted, and says on standard output, in lines that the host reads, how
// gputrace does there:
//
//	FACT <name> <words>                       what was found
//	PROGRAM <name> <verified instructions>    of a BPF program, as the trace has loaded it; 0: the kernel does not tell
//	CHECK <name> ok|FAIL <seconds> <words>    a check has ended
//	LOG <line>                                what belongs to the check before
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Where the host has put things.
const (
	binary   = "/usr/bin/gputrace"
	bench    = "/usr/bin/bench"
	tests    = "/repo/e2e/e2e.test"
	folder   = "/repo/e2e"
	programs = "/repo/testdata/.work/programs"
)

// tail is how many lines of a failed command are printed.
const tail = 30

// timeout bounds what a check may take. Nothing that works comes near it.
const timeout = 5 * time.Minute

// check is one thing that must hold. run returns what to print of it, in its first line and, if there are more, in the others.
type check struct {
	name string
	run  func(ctx context.Context) (string, error)
}

// failure is an error with the end of the output that shows it.
type failure struct {
	error
	output string
}

func main() {
	var u unix.Utsname
	_ = unix.Uname(&u) // cannot fail
	fmt.Printf("FACT release %s\n", unix.ByteSliceToString(u.Release[:]))
	checks := whole
	switch os.Getenv("KERNELS_GUEST") {
	case "refused":
		checks = refused
	case "torch":
		checks = append(checks, torch...)
	case "many":
		checks = many
	}
	checks = slices.DeleteFunc(slices.Clone(checks), func(c check) bool { return slices.Contains(notHere[runtime.GOARCH], c.name) })
	only, err := regexp.Compile(os.Getenv("KERNELS_CHECKS"))
	if err != nil {
		fmt.Println("FACT error", err)
		return
	}
	fmt.Printf("FACT checks %d\n", len(checks))
	for _, c := range checks {
		if only.MatchString(c.name) {
			c.report()
		}
	}
	fmt.Println("FACT end all checks were made")
}

// limit bounds what a check may take. With PyTorch, and where the guest has more CPUs than the host, it takes longer.
func limit() time.Duration {
	if guest := os.Getenv("KERNELS_GUEST"); guest == "torch" || guest == "many" {
		return 3 * timeout
	}
	return timeout
}

// report runs a check and prints what comes of it.
func (c *check) report() {
	ctx, cancel := context.WithTimeout(context.Background(), limit())
	defer cancel()
	begin := time.Now()
	detail, err := c.run(ctx)
	result := "ok"
	if err != nil {
		result, detail = "FAIL", firstLine(err.Error())
	}
	said, more, _ := strings.Cut(detail, "\n")
	fmt.Printf("CHECK %s %s %.0f %s\n", c.name, result, time.Since(begin).Seconds(), said)
	for line := range strings.Lines(more) {
		fmt.Println("LOG", strings.TrimSpace(line))
	}
	if f := (*failure)(nil); errors.As(err, &f) {
		for _, line := range lastLines(f.output, tail) {
			fmt.Println("LOG", line)
		}
	}
}

// output runs a command that must end well.
func output(ctx context.Context, environment []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = folder, append(os.Environ(), environment...), 5*time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return string(out), &failure{fmt.Errorf("%s: %w", name, err), string(out)}
	}
	return string(out), nil
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

func lastLines(s string, n int) []string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[max(0, len(lines)-n):]
}
