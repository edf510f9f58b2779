// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package advice

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/doctor"
	"github.com/gputrace/gputrace/tracer/feature"
)

// Machine says what is in the way of a trace on this machine, as far as that is found out at once, a line each; and whether sudo is
// what is missing.
func Machine() (sudo bool, lines []string) {
	missing, err := doctor.Missing()
	if err == nil && len(missing) > 0 && os.Geteuid() == 0 {
		var names []string
		for _, c := range missing {
			names = append(names, c.Name)
		}
		lines = append(lines, "root may not trace here without "+strings.Join(names, ", ")+": run gputrace on the host, or")
		for _, f := range doctor.Give() {
			lines = append(lines, f.Where+": "+f.Line)
		}
	}
	sudo = len(missing) > 0 && os.Geteuid() != 0
	if doctor.InnerUserNamespace() {
		lines = append(lines, "this is a separate user namespace, as in a rootless container: its root may not trace; run gputrace on the "+
			"host, as root")
	}
	if line := kernelLine(err == nil && len(missing) == 0); line != "" {
		lines = append(lines, line)
	}
	if doctor.PtraceScope() == "3" {
		lines = append(lines, strings.TrimSpace(scopeForbidsAll))
	}
	return sudo, lines
}

// needs is the first Linux that has all that tracing needs (feature.All); distributions give some of it to older ones.
const needs = "5.15"

// kernelLine says what an old kernel lacks, or that it may lack something where we may not ask it; empty: it is new enough, or has all.
func kernelLine(ask bool) string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	release := unix.ByteSliceToString(u.Release[:])
	if !olderThan(release, needs) {
		return ""
	}
	if !ask {
		return fmt.Sprintf("Linux %s may lack what tracing needs, which Linux %s has: sudo gputrace doctor", release, needs)
	}
	var lacks []string
	for i := range feature.All {
		if f := &feature.All[i]; f.Without == "" && errors.Is(f.Probe(), feature.ErrMissing) {
			lacks = append(lacks, f.Name)
		}
	}
	if lacks == nil {
		return ""
	}
	return fmt.Sprintf("Linux %s cannot be traced on, because it lacks %s: boot Linux %s or newer; gputrace who, dump and summary "+
		"work without it",
		release, strings.Join(lacks, ", "), needs)
}

// olderThan compares the first two numbers of releases.
func olderThan(release, than string) bool {
	var a, b, c, d int
	if _, err := fmt.Sscanf(release, "%d.%d", &a, &b); err != nil {
		return false
	}
	if _, err := fmt.Sscanf(than, "%d.%d", &c, &d); err != nil {
		return false
	}
	return a < c || a == c && b < d
}
