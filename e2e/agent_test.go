// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// agentJob trains with a leak, prints PyTorch's own counters, and holds still until it is let go.
const agentJob = `
import os, time, torch
def wait(name):
    while not os.path.exists('DIR/' + name): time.sleep(0.01)
early = torch.empty(3 << 20, dtype=torch.uint8, device='cuda')
print('READY', os.getpid(), flush=True)
wait('go')
model = torch.nn.Linear(256, 256, device='cuda')
kept = []
for step in range(80):
    model(torch.randn(64, 256, device='cuda')).sum().backward()
    kept.append(torch.empty(1 << 20, dtype=torch.uint8, device='cuda'))
    time.sleep(0.02)
print('ALLOCATED', torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved(), flush=True)
wait('hold')
try: torch.empty(1 << 45, dtype=torch.uint8, device='cuda')
except torch.cuda.OutOfMemoryError: pass
`

const (
	agentPod       = "0f3b1f2e-8a6d-4c57-9a53-2f6f1f5f7c11"
	agentContainer = "3f2a91b0c4d5e6f73f2a91b0c4d5e6f73f2a91b0c4d5e6f73f2a91b0c4d5e6f7"
)

// inPod moves a process into a control group like one of Kubernetes, and removes the group at the end.
func inPod(t *testing.T, p *target) {
	t.Helper()
	root := "/sys/fs/cgroup"
	if exists(root + "/freezer") {
		root += "/freezer"
	}
	group := root
	for _, name := range []string{fmt.Sprintf("gputrace-e2e-%d", os.Getpid()), "kubepods", "burstable", "pod" + agentPod, agentContainer} {
		group = filepath.Join(group, name)
		if err := os.Mkdir(group, 0o755); err != nil {
			t.Skipf("no control group can be made: %v", err)
		}
		made := group
		t.Cleanup(func() { eventually(t, "an empty control group", func() bool { return os.Remove(made) == nil }) })
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-p.pid, syscall.SIGKILL)
		<-p.exited
	})
	require.NoError(t, os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(p.pid)), 0o644))
}

// apiServer answers for the one pod of node n1.
func apiServer(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") != "" {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		fmt.Fprintf(w, `{"metadata":{"resourceVersion":"1"},"items":[{"metadata":{"uid":%q,"name":"train-0","namespace":"ml"},
			"spec":{"nodeName":"n1"},"status":{"containerStatuses":[{"name":"main","containerID":"containerd://%s"}]}}]}`, agentPod, agentContainer)
	}))
	t.Cleanup(s.CloseClientConnections)
	return s.URL
}

// freeAddress is an address at which nothing listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

// nodeAgent is a gputrace agent that runs.
type nodeAgent struct {
	*command
	address string
	token   string // empty: none is sent
}

func startAgent(t *testing.T, dir, address string) *nodeAgent {
	t.Helper()
	a := &nodeAgent{command: newCommand(t), address: address}
	a.cmd.Args = []string{env.binary, "agent", "--config", filepath.Join(dir, "agent.yaml")}
	a.start(t)
	return a
}

// get asks the agent; empty when it does not answer.
func (a *nodeAgent) get(path string) string {
	request, err := http.NewRequest(http.MethodGet, "http://"+a.address+path, nil)
	if err != nil {
		return ""
	}
	if a.token != "" {
		request.Header.Set("Authorization", "Bearer "+a.token)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	b, _ := io.ReadAll(response.Body)
	return string(b)
}

// until waits until an answer matches, and returns it.
func (a *nodeAgent) until(t *testing.T, path, pattern string) string {
	t.Helper()
	var body string
	e := regexp.MustCompile(pattern)
	eventually(t, pattern+" in "+path, func() bool {
		body = a.get(path)
		return e.MatchString(body)
	})
	return body
}

// ofPod is the value of a metric of the job.
func ofPod(t *testing.T, metrics, name string) uint64 {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + name + `\{[^}]*pod="train-0"[^}]*\} (\S+)$`).FindStringSubmatch(metrics)
	require.NotNil(t, m, "%s in\n%s", name, metrics)
	v, err := strconv.ParseFloat(m[1], 64)
	require.NoError(t, err)
	return uint64(v)
}

// TestAgent follows one job of a pod through the life of the agent: labels from the control group and the API server, PyTorch's own
// figures in the metrics, in Prometheus, in go tool pprof, in what is sent to servers and in the dataset, the verdict, a kill -9 of the
// agent, and no series after the job.
func TestAgent(t *testing.T) {
	dir, address := t.TempDir(), freeAddress(t)
	config := fmt.Sprintf("listen: %s\ninterval: 1s\ncache_dir: %s\nholders: false\nkubernetes: {names: true, api_server: %q, node: n1}\n"+
		"relabel_configs: [{action: keep, source_labels: [namespace, pod, container], regex: ml;train-0;main}]\n"+
		"dataset: {dir: %s, interval: 1s, flush: 1s}\n", address, env.cache, apiServer(t), filepath.Join(dir, "dataset"))
	manager := startAlertmanager(t, dir)
	config += fmt.Sprintf("webhooks: [{name: manager, url: 'http://%s/api/v2/alerts', format: alertmanager}]\n", manager)
	servers := newReceivers(t)
	config += servers.config() + ringConfig(dir)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "agent.yaml"), []byte(config), 0o644))
	p := startPythonIn(t, []string{"RANK=1", "WORLD_SIZE=4"}, agentJob)
	p.await(t, "READY")
	inPod(t, p)
	a := startAgent(t, dir, address)
	a.until(t, "/metrics", `gputrace_process_info\{.*container="main".*namespace="ml".*pod="train-0",.*rank="1"`)
	p.release(t)
	allocated := strings.Fields(p.await(t, "ALLOCATED"))[1:]
	want := map[string]uint64{}
	for i, name := range []string{"gputrace_live_bytes", "gputrace_peak_bytes", "gputrace_reserved_bytes"} {
		v, err := strconv.ParseUint(allocated[i], 10, 64)
		require.NoError(t, err)
		want[name] = v
	}
	metrics := a.until(t, "/metrics", `gputrace_live_bytes\{[^}]*pod="train-0"[^}]*\} `+exponent(want["gputrace_live_bytes"]))
	for name, v := range want {
		require.Equal(t, v, ofPod(t, metrics, name), name)
	}
	require.InDelta(t, 1<<20, ofPod(t, metrics, "gputrace_growth_bytes_per_step"), 0)
	a.until(t, "/metrics", `gputrace_verdict\{[^}]*pod="train-0"[^}]*verdict="growing"`)
	a.until(t, "/api/v1/targets", `"sentence": "[^"]*1.0 MiB[^"]*step`)
	a.openProfile(t, want["gputrace_live_bytes"])
	t.Run("Recordings", func(t *testing.T) { a.checkRecordings(t, dir, want) })
	t.Run("Push", func(t *testing.T) { servers.check(t, a, want["gputrace_live_bytes"]) })
	t.Run("Prometheus", func(t *testing.T) { a.scrapedByPrometheus(t, dir, want["gputrace_live_bytes"]) })

	a.until(t, "/metrics", `gputrace_agent_dataset_rows_total\{outcome="written"\} [1-9]`)
	eventually(t, "the dataset agrees with PyTorch", func() bool { return asksDataset(t, filepath.Join(dir, "dataset"), want) })
	a = a.killAndStart(t, dir, config)
	metrics = a.until(t, "/metrics", `gputrace_live_bytes\{`)
	require.Equal(t, want["gputrace_live_bytes"], ofPod(t, metrics, "gputrace_live_bytes"), "from the first scrape")
	require.Equal(t, want["gputrace_reserved_bytes"], ofPod(t, metrics, "gputrace_reserved_bytes"))
	t.Run("Access", a.checkAccess)
	t.Run("RecordingsAccess", func(t *testing.T) { a.checkRecordingsAccess(t, dir) })
	p.touch(t, "hold")
	p.wait(t)
	require.NotContains(t, a.until(t, "/metrics", `gputrace_agent_targets 0\n`), "train-0")
	a.until(t, "/api/v1/failures?pod=ml/train-0", `"requested_bytes": 35184372088832,\s+"requested_at": "[^"]*:16 `)
	live := strconv.FormatUint(want["gputrace_live_bytes"], 10)
	a.until(t, "/api/v1/failures", `"in_use_bytes": `+live+`,`) // PyTorch's own figure at the failed request, once it is judged
	alerted(t, manager, map[string]string{
		"GPUMemoryGrowing": `\b1\.0 MiB\b.*\bstep\b`, "GPUOutOfMemory": `^a request for 32.0 TiB at \S+:16 <module> failed with `,
	})
	require.NoError(t, a.cmd.Process.Signal(syscall.SIGTERM))
	<-a.exited
	require.Equal(t, 0, a.cmd.ProcessState.ExitCode(), a.stderr.String())
}

// startAlertmanager starts a real Alertmanager, and returns its address.
func startAlertmanager(t *testing.T, dir string) string {
	t.Helper()
	address, file := freeAddress(t), filepath.Join(dir, "alertmanager.yml")
	require.NoError(t, os.WriteFile(file, []byte("route: {receiver: none}\nreceivers: [{name: none}]\n"), 0o644))
	cmd := exec.Command("prometheus-alertmanager", "--config.file="+file, "--storage.path="+filepath.Join(dir, "alertmanager"),
		"--web.listen-address="+address, "--cluster.listen-address=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, cmd.Start(), "apt-get install prometheus-alertmanager")
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return address
}

// alerted waits until Alertmanager has the alerts about the pod, by name and description.
func alerted(t *testing.T, manager string, want map[string]string) {
	t.Helper()
	var body []byte
	defer func() {
		if t.Failed() {
			t.Logf("Alertmanager has %s", body)
		}
	}()
	eventually(t, "alerts in Alertmanager", func() bool {
		response, err := http.Get("http://" + manager + "/api/v2/alerts?filter=pod%3D%22train-0%22")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		var got []struct{ Labels, Annotations map[string]string }
		if body, err = io.ReadAll(response.Body); err != nil || json.Unmarshal(body, &got) != nil {
			return false
		}
		found := map[string]bool{}
		for _, a := range got {
			name := a.Labels["alertname"]
			if e := want[name]; e != "" && regexp.MustCompile(e).MatchString(a.Annotations["description"]) && a.Labels["rank"] == "1" {
				found[name] = true
			}
		}
		return len(found) == len(want)
	})
}

// asksDataset reports whether DuckDB finds PyTorch's figures in the dataset that the agent wrote, and the growth that it judged.
func asksDataset(t *testing.T, dir string, want map[string]uint64) bool {
	t.Helper()
	python, err := output(filepath.Join(env.testdata, "setup.sh"), "--print", "python")
	require.NoError(t, err)
	const program = `
import duckdb, os, sys
os.chdir(sys.argv[1])
duckdb.execute(open("queries/duckdb.sql").read())
now = duckdb.execute("""SELECT live_bytes, reserved_bytes, (SELECT sum(bytes) FROM lines l WHERE l.process = m.process AND l.time = m.time
    AND l.moment = 'now' AND l.layer = 'torch') FROM moments m WHERE namespace = 'ml' AND pod = 'train-0' AND rank = 1 AND moment = 'now'
    ORDER BY time DESC LIMIT 1""").fetchone()
peak = duckdb.execute("SELECT max(live_bytes) FROM moments WHERE moment = 'peak'").fetchone()
grew = [r[3] for r in duckdb.execute(open("queries/grew_first.sql").read()).fetchall()]
print(*(now or ()), *peak, *grew)`
	got, err := output(python, "-c", program, dir)
	require.NoError(t, err)
	live := want["gputrace_live_bytes"]
	return got == fmt.Sprint(live, want["gputrace_reserved_bytes"], live, want["gputrace_peak_bytes"], 1)
}

// exponent is a number as the text format of metrics has it, as an expression.
func exponent(n uint64) string { return regexp.QuoteMeta(strconv.FormatFloat(float64(n), 'g', -1, 64)) }

// openProfile opens a profile by its address in go tool pprof.
func (a *nodeAgent) openProfile(t *testing.T, want uint64) {
	t.Helper()
	for _, profile := range []string{"gpu_heap?pod=ml/train-0", "gpu_peak?rank=1"} {
		cmd := exec.Command("go", "tool", "pprof", "-top", "-nodefraction=0", "-unit=B", "-tagfocus=layer=torch",
			"http://"+a.address+"/debug/pprof/"+profile)
		cmd.Env = append(os.Environ(), "PPROF_TMPDIR="+t.TempDir())
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		m := regexp.MustCompile(`accounting for (\d+)B`).FindStringSubmatch(string(out))
		require.NotNil(t, m, string(out))
		if strings.HasPrefix(profile, "gpu_heap") {
			require.Equal(t, strconv.FormatUint(want, 10), m[1])
		}
	}
}

// scrapedByPrometheus lets a real Prometheus find the job by service discovery and scrape it.
func (a *nodeAgent) scrapedByPrometheus(t *testing.T, dir string, want uint64) {
	if _, err := exec.LookPath("prometheus"); err != nil && os.Getenv("CI") != "true" {
		t.Skip("no prometheus here")
	}
	address := freeAddress(t)
	config := fmt.Sprintf("global: {scrape_interval: 1s}\nscrape_configs:\n- job_name: gputrace\n  honor_labels: true\n"+
		"  http_sd_configs: [{url: 'http://%s/sd', refresh_interval: 1s}]\n", a.address)
	file := filepath.Join(dir, "prometheus.yml")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o644))
	cmd := exec.Command("prometheus", "--config.file="+file,
		"--storage.tsdb.path="+filepath.Join(dir, "tsdb"), "--web.listen-address="+address)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	var answer struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	eventually(t, "a sample in Prometheus", func() bool {
		response, err := http.Get("http://" + address + "/api/v1/query?query=" + url.QueryEscape(`gputrace_live_bytes{pod="train-0"}`))
		if err != nil {
			return false
		}
		defer response.Body.Close()
		return json.NewDecoder(response.Body).Decode(&answer) == nil && len(answer.Data.Result) == 1
	})
	require.Equal(t, strconv.FormatUint(want, 10), answer.Data.Result[0].Value[1])
	require.Equal(t, "ml", answer.Data.Result[0].Metric["namespace"])
}
