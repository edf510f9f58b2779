// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/agent/ring"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/process"
)

// listed asks for the list of recordings.
func (r *running) listed(query string) []ring.Listed {
	r.t.Helper()
	_, body := r.get("/api/v1/recordings" + query)
	var out struct{ Targets []ring.Listed }
	require.NoError(r.t, json.Unmarshal([]byte(body), &out), body)
	return out.Targets
}

// pageOf is the page that gputrace export -f html writes of a recording.
func pageOf(t *testing.T, in *export.Source) string {
	t.Helper()
	formats, err := export.Find("html")
	require.NoError(t, err)
	input, err := in.Input(&export.Window{}, "test", func(error) {})
	require.NoError(t, err)
	var b strings.Builder
	require.NoError(t, formats[0].Write(&b, input))
	return b.String()
}

// TestRecordings: each process is recorded in segments from which the usual formats are made, while it runs and after its end.
func TestRecordings(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ring")
	r := start(t, "labels: {cluster: c1}\nrecordings: {dir: "+dir+", segment: 1s}\n")
	s := <-r.sources
	p := &madeTarget{pid: 1 << 30, file: "/app/train.py"}
	p.about = process.About{Name: hostile, Cmdline: []string{hostile}, Environ: []string{"SLURM_JOB_ID=" + hostile}}
	s.arrive(p, 5)
	r.until("/metrics", "gputrace_agent_recordings 3\n")
	all := r.listed("?cluster=c1")
	require.Len(t, all, 1)
	require.Equal(t, "c1", all[0].Labels["cluster"])
	require.Empty(t, r.listed("?cluster=c2"))
	id := all[0].ID
	r.until("/target?pid=1073741824", `href="/recordings/`+id+`/latest/page"`)

	status, page := r.get("/recordings/" + id + "/latest/page")
	require.Equal(t, http.StatusOK, status, page)
	require.Contains(t, page, "gputrace")
	require.NotContains(t, page, hostile)
	s.end(p)
	r.until("/metrics", "gputrace_agent_targets 0\n")
	r.ring.Wait()
	all = r.listed("")
	for i, part := range all[0].Segments {
		require.NotNil(t, part.Ended)
		in, err := export.Open(filepath.Join(dir, id, part.Name), nil)
		require.NoError(t, err)
		require.EqualValues(t, 2560, in.Trace.End().Total(), "segment %d", i)
		require.Equal(t, all[0].Labels, in.Info.Labels)
		require.NotNil(t, in.End)
		require.Equal(t, pageOf(t, in), r.until("/recordings/"+id+"/"+part.Name+"/page", "</html>"))
		require.NoError(t, in.Close())
		status, body := r.get("/recordings/" + id + "/" + part.Name + "/" + export.TraceName)
		require.Equal(t, http.StatusOK, status)
		file, err := os.ReadFile(filepath.Join(dir, id, part.Name, export.TraceName))
		require.NoError(t, err)
		require.Equal(t, string(file), body)
	}
	for _, path := range []string{
		"/recordings/pid1-1/latest/page", "/recordings/" + id + "/none/page", "/recordings/" + id + "/..%2f/page",
		"/recordings/..%2f..%2fetc/latest/page", "/recordings/" + id + "/latest/target.json", "/recordings/%2e%2e/%2e%2e/trace.gputrace",
		"/recordings/" + id + "/latest/..%2f..%2ftarget.json",
	} {
		status, body := r.get(path)
		require.Equal(t, http.StatusNotFound, status, path)
		require.NotContains(t, body, "cluster")
	}
}

// TestRecordingsAccess: a token opens the recordings of its namespaces only, also if the process has ended.
func TestRecordingsAccess(t *testing.T) {
	_, config := tokensOf(t)
	dir := t.TempDir()
	for i, space := range []string{"red", "blue", ""} {
		id := ring.ID(i+1, 1)
		part := filepath.Join(dir, id, "20261129T000000.000000Z")
		require.NoError(t, os.MkdirAll(part, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(part, export.TraceName), []byte(space+"_secret"), 0o600))
		labels := map[string]string{"namespace": "red"} // which must not matter
		about, err := json.Marshal(ring.Target{ID: id, PID: i + 1, Program: space + "_secret", Labels: labels, Namespace: space})
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, id, "target.json"), about, 0o600))
	}
	now := time.Now()
	require.NoError(t, filepath.Walk(dir, func(path string, _ os.FileInfo, err error) error { return os.Chtimes(path, now, now) }))
	r := start(t, config+"recordings: {dir: "+dir+"}\n")
	admin(r, "/api/v1/recordings", `"_secret"`)
	for name, sees := range map[string]string{"red": "red_secret", "blue": "blue_secret", "none": ""} {
		_, body := r.ask("/api/v1/recordings", "Bearer "+tokenOf(name))
		for _, other := range []string{"red_secret", "blue_secret", `"_secret"`} {
			require.Equal(t, other == sees, strings.Contains(body, other), "%s: %s", name, body)
		}
		for i, space := range []string{"red", "blue", ""} {
			for _, file := range []string{"page", export.TraceName} {
				path := fmt.Sprintf("/recordings/pid%d-1/latest/%s", i+1, file)
				response, body := r.ask(path, "Bearer "+tokenOf(name))
				require.Equal(t, "no-store", response.Header.Get("Cache-Control"))
				if space != name {
					require.Equal(t, http.StatusNotFound, response.StatusCode, path)
					require.Equal(t, ring.ErrNone.Error()+"\n", body, "as one that does not exist")
				} else if file != "page" {
					require.Equal(t, sees, body)
				}
			}
		}
	}
	response, _ := r.ask("/recordings/pid1-1/latest/page")
	require.Equal(t, http.StatusUnauthorized, response.StatusCode)
}

// TestNoRecordings: without a directory the agent says how to keep recordings, and links to none.
func TestNoRecordings(t *testing.T) {
	r := start(t, "")
	(<-r.sources).arrive(&madeTarget{pid: 1 << 30}, 1)
	require.NotContains(t, r.until("/target?pid=1073741824", "Profiles: "), "/recordings/")
	for _, path := range []string{"/api/v1/recordings", "/recordings/pid1-1/latest/page", "/recordings/pid1-1/latest/trace.gputrace"} {
		status, body := r.get(path)
		require.Equal(t, http.StatusNotFound, status)
		require.Contains(t, body, "set recordings.dir")
	}
	for _, config := range []string{
		"dir: ring", "segment: 0s", "segment_size: 1KiB", "segment_size: 1GiB", "target_size: 20MiB", "max_size: 10MiB", "max_age: 1s",
		"size: 1GiB",
	} {
		_, err := ParseConfig([]byte("recordings: {" + config + "}"))
		require.Error(t, err, config)
	}
}
