// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package measure

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// page has gputrace make the page of the long recording on one core, and opens it.
func (out *recordingResult) page(e *environment, path string) error {
	file := e.unique("report.html")
	cmd := exec.Command(e.gputrace, "export", path, "-f", "html", "-o", file)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("gputrace export: %w\n%s", err, text)
	}
	defer os.Remove(file)
	out.pageTime = append(out.pageTime, (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds())
	st, err := os.Stat(file)
	if err != nil {
		return fmt.Errorf("look at the page: %w", err)
	}
	out.pageSize = append(out.pageSize, float64(st.Size())/1e6)
	if _, err := exec.LookPath("chromium"); err != nil {
		return nil // the table says "-"
	}
	ms, err := firstPicture(file)
	if err != nil {
		return fmt.Errorf("open the page: %w", err)
	}
	out.picture = append(out.picture, ms)
	return nil
}

// firstPicture is how long a page takes in Chromium until its curve is drawn, milliseconds since it was asked for. What drives
// Chromium is a module of its own, so that gputrace's does not depend on it.
func firstPicture(file string) (float64, error) {
	file, err := filepath.Abs(file)
	if err != nil {
		return 0, err
	}
	cmd := exec.Command("go", "run", "./picture", file)
	cmd.Dir = "e2e/browser"
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
}
