// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package measure

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// whoName selects this measurement on the command line.
const whoName = "who"

// whoHeaps are sizes of processes: of the memory that is their own. The first is what PyTorch itself has.
var whoHeaps = []string{"200MiB", "500MiB", "1GiB", "4GiB"}

// whoResult is gputrace who on a process of one size.
type whoResult struct {
	own     float64 // of the process, MiB: resident memory that no file is behind
	objects int     // Python objects and C++ objects that were reached
	blocks  int     // live blocks
	named   int     // of them with a path or, where no tensor holds them, a class
	seconds series  // command to its end
	cpu     series  // of it, seconds of one core
	read    series  // MiB read from the process
	memory  series  // MiB, largest resident size of gputrace
	// Seconds that the process itself takes with gc.get_referrers: for one block, and for all parameters together.
	one, all float64
}

// whoReport is what is taken of its output.
type whoReport struct {
	Blocks []struct {
		Path  []json.RawMessage
		Class string
	}
	Cost struct {
		BytesRead uint64 `json:"bytes_read"`
		Objects   int
	}
}

// measureWho asks who holds the memory of processes of different sizes.
func measureWho(e *environment, o Options) ([]whoResult, error) {
	var out []whoResult
	for _, heap := range whoHeaps {
		r, err := measureHeap(e, o, heap)
		if err != nil {
			return out, fmt.Errorf("who, %s: %w", heap, err)
		}
		out = append(out, r)
	}
	return out, nil
}

func measureHeap(e *environment, o Options, heap string) (whoResult, error) {
	var out whoResult
	dir := e.unique("who")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return out, fmt.Errorf("make a folder: %w", err)
	}
	progress("who: a heap of %s", heap)
	cmd := exec.Command(filepath.Join(e.root, "testdata", "run"), e.script("who_heap"), "--heap", heap, "--ask", dir)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return out, fmt.Errorf("make a pipe: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return out, fmt.Errorf("start: %w", err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "READY") {
		return out, errors.Join(errors.New("the process did not get ready"), err)
	}
	out.own = resident(cmd.Process.Pid, "RssAnon:")
	for round := range o.Rounds {
		progress("who: a heap of %s, round %d of %d", heap, round+1, o.Rounds)
		if err := out.askOutside(e, cmd.Process.Pid); err != nil {
			return out, err
		}
	}
	return out, out.askInside(dir)
}

// askOutside runs gputrace who once.
func (r *whoResult) askOutside(e *environment, pid int) error {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(e.gputrace, "who", "-p", strconv.Itoa(pid), "--json")
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := forgetPeak(); err != nil {
		return err
	}
	begin := time.Now()
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("gputrace who: %w\n%s", err, stderr.String())
	}
	r.seconds = append(r.seconds, time.Since(begin).Seconds())
	r.cpu = append(r.cpu, (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds())
	var report whoReport
	if err := json.Unmarshal(stdout.Bytes(), &report); err != nil {
		return fmt.Errorf("read the output of gputrace who: %w", err)
	}
	r.read = append(r.read, float64(report.Cost.BytesRead)/(1<<20))
	r.memory = append(r.memory, largest(cmd.ProcessState))
	r.objects, r.blocks, r.named = report.Cost.Objects, len(report.Blocks), 0
	for _, b := range report.Blocks {
		if len(b.Path) > 0 || b.Class != "" {
			r.named++
		}
	}
	return nil
}

// askInside has the process answer with gc.get_referrers (testdata/workloads/who_heap.py).
func (r *whoResult) askInside(dir string) error {
	if err := os.WriteFile(filepath.Join(dir, "ask"), []byte("{\"referrers\": true}\n"), 0); err != nil {
		return fmt.Errorf("ask the process: %w", err)
	}
	answer := filepath.Join(dir, "answer")
	if err := waitForFile(answer, startTimeout); err != nil {
		return err
	}
	b, err := os.ReadFile(answer)
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	var said struct {
		Referrers struct{ One, All float64 }
	}
	if err := json.Unmarshal(b, &said); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	r.one, r.all = said.Referrers.One, said.Referrers.All
	return nil
}

func whoTimes(results []whoResult, w io.Writer) {
	fmt.Fprintf(w, "`gputrace who` on a process that holds a small GPT and its optimizer, and data: a quarter small Python objects, the "+
		"rest large "+
		"buffers. Beside it what the process itself takes, standing still, to go from one parameter or from all of them up to a "+
		"variable with gc.get_referrers.\n\n")
	t := table{{"memory of the process, MiB", "objects", "blocks", "named", "gputrace who, s", "CPU, s", "read, MiB",
		"resident size of gputrace, MiB",
		"gc.get_referrers, one, s", "all, s"}}
	for i := range results {
		r := &results[i]
		t.row(fmt.Sprintf("%.0f", r.own), fmt.Sprint(r.objects), fmt.Sprint(r.blocks), fmt.Sprint(r.named), r.seconds.text("%.2f"),
			r.cpu.text("%.2f"),
			r.read.text("%.0f"), r.memory.text("%.0f"), fmt.Sprintf("%.2f", r.one), fmt.Sprintf("%.2f", r.all))
	}
	t.print(w)
}
