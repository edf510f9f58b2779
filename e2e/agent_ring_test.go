// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// Bounds of the recordings of the agent under test. The smallest size of a recording in the sums makes both apply within seconds.
const (
	ringOfTarget = 256 << 10
	ringOfAll    = 512 << 10
)

func ringConfig(dir string) string {
	return fmt.Sprintf("recordings: {dir: %s, segment: 1s, segment_size: 64KiB, target_size: %d, max_size: %d}\n",
		filepath.Join(dir, "ring"), ringOfTarget, ringOfAll)
}

// listedRecordings are the names of the segments of the one process that was recorded, by its ID.
func (a *nodeAgent) listedRecordings(t *testing.T, query string) (id string, names []string) {
	t.Helper()
	var list struct {
		Targets []struct {
			ID, Namespace string
			Segments      []struct{ Name string }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(a.until(t, "/api/v1/recordings"+query, `"name": "\d{8}T`)), &list))
	require.Len(t, list.Targets, 1)
	require.Equal(t, "ml", list.Targets[0].Namespace)
	for _, s := range list.Targets[0].Segments {
		names = append(names, s.Name)
	}
	return list.Targets[0].ID, names
}

// checkRecordings compares PyTorch's figures with the page that the agent serves of a running process, with a page of the recording that
// it serves, and with what report prints of a segment on the disk.
func (a *nodeAgent) checkRecordings(t *testing.T, dir string, want map[string]uint64) {
	live := strconv.FormatUint(want["gputrace_live_bytes"], 10)
	id, _ := a.listedRecordings(t, "?pod=ml/train-0")
	own := t.TempDir()
	page, trace, again := filepath.Join(own, "page.html"), filepath.Join(own, "a.gputrace"), filepath.Join(own, "again.html")
	require.NoError(t, os.WriteFile(trace, []byte(a.until(t, "/recordings/"+id+"/latest/trace.gputrace", "^GPUTRACE")), 0o600))
	require.NoError(t, os.WriteFile(page, []byte(a.until(t, "/recordings/"+id+"/latest/page", "</html>")), 0o600))
	_, err := output(env.binary, "export", "-f", "html", "-o", again, trace)
	require.NoError(t, err)
	for _, path := range []string{page, again} { // the peak was before the segment
		require.Contains(t, pageText(t, path), `data-bytes="`+live+`" data-name="live"`, path)
	}
	a.until(t, "/target?pod=train-0", `href="/recordings/`+id+`/latest/page"`)
	_, names := a.listedRecordings(t, "")
	require.Greater(t, len(names), 1)
	text, err := output(env.binary, "report", "--json", filepath.Join(dir, "ring", id, names[len(names)-2]))
	require.NoError(t, err)
	var got struct {
		Accounts []struct{ Allocated, Reserved, Peak uint64 }
	}
	require.NoError(t, json.Unmarshal([]byte(text), &got), text)
	require.Len(t, got.Accounts, 1)
	account := got.Accounts[0]
	require.Equal(t, want, map[string]uint64{
		"gputrace_live_bytes": account.Allocated, "gputrace_peak_bytes": account.Peak, "gputrace_reserved_bytes": account.Reserved,
	})
	a.checkRing(t, dir)
}

// checkRing checks that the recordings are within their bounds, on the disk and in the metrics, after the oldest were removed.
func (a *nodeAgent) checkRing(t *testing.T, dir string) {
	t.Helper()
	metrics := a.until(t, "/metrics", `gputrace_agent_recordings_removed_total [1-9]`)
	m := regexp.MustCompile(`(?m)^gputrace_agent_recordings_bytes (\S+)$`).FindStringSubmatch(metrics)
	require.NotNil(t, m)
	bytes, err := strconv.ParseFloat(m[1], 64)
	require.NoError(t, err)
	require.LessOrEqual(t, bytes, float64(ringOfTarget+64<<10))
	require.Contains(t, metrics, "gputrace_agent_recordings_failures_total 0\n")
	all, err := filepath.Glob(filepath.Join(dir, "ring", "*", "*", "trace.gputrace"))
	require.NoError(t, err)
	var sum int64
	for _, path := range all {
		if st, err := os.Stat(path); err == nil { // otherwise it has just been removed
			sum += st.Size()
		}
	}
	require.LessOrEqual(t, sum, int64(ringOfTarget+64<<10))
}

// checkRecordingsAccess asks for the recordings of the job in the namespace ml with the token of its namespace, with another one and with
// none. The job is the one that the agent before recorded too.
func (a *nodeAgent) checkRecordingsAccess(t *testing.T, dir string) {
	own := &nodeAgent{address: a.address, token: agentToken("ml")}
	other := &nodeAgent{address: a.address, token: agentToken("other")}
	nobody := &nodeAgent{address: a.address}
	id, _ := own.listedRecordings(t, "")
	require.NotContains(t, other.get("/api/v1/recordings"), id)
	own.until(t, "/recordings/"+id+"/latest/page", "</html>") // when the first events are in the file
	for _, file := range []string{"page", "trace.gputrace"} {
		path := "/recordings/" + id + "/latest/" + file
		require.Equal(t, other.get("/recordings/pid1-1/latest/page"), other.get(path), "as one that does not exist")
		require.Contains(t, nobody.get(path), "a valid bearer token is needed")
	}
	folders, err := filepath.Glob(filepath.Join(dir, "ring", "*"))
	require.NoError(t, err)
	require.Equal(t, []string{filepath.Join(dir, "ring", id)}, folders, "both agents recorded into one folder")
	a.checkRing(t, dir)
}
