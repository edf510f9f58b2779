// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/exporter-toolkit/web"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// served are the names of all metrics that the agent serves, by its source.
func served(t *testing.T) map[string]bool {
	t.Helper()
	source, err := os.ReadFile("metrics.go")
	require.NoError(t, err)
	out := map[string]bool{"process_cpu_seconds_total": true, "process_resident_memory_bytes": true}
	for _, m := range regexp.MustCompile(`= (?:gauge|counter)\("(gputrace_\w+)"`).FindAllStringSubmatch(string(source), -1) {
		out[m[1]] = true
	}
	require.Greater(t, len(out), 25)
	return out
}

var metricName = regexp.MustCompile(`\b(?:gputrace_[a-z_]+|process_[a-z_]+)\b`)

// TestAlertRules: promtool accepts the rules, and each fires on its case and not on others; the metrics are the agent's.
func TestAlertRules(t *testing.T) {
	dir := "../deploy/prometheus"
	text, err := os.ReadFile(filepath.Join(dir, "gputrace.rules.yml"))
	require.NoError(t, err)
	names := served(t)
	for _, line := range regexp.MustCompile(`(?m)^\s+(?:expr:.*|(?:and )?\(?gputrace_.*)$`).FindAllString(string(text), -1) {
		for _, name := range metricName.FindAllString(line, -1) {
			require.True(t, names[name], name)
		}
	}
	if _, err := exec.LookPath("promtool"); err != nil && os.Getenv("CI") != "true" {
		t.Skip("no promtool here")
	}
	cmd := exec.Command("promtool", "test", "rules", "gputrace.rules.test.yml")
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
}

// TestDashboard: the panels ask for metrics that the agent serves, in places that do not overlap.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile("../deploy/grafana/gputrace.json")
	require.NoError(t, err)
	var d struct {
		Panels []struct {
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
		Templating struct{ List []struct{ Query string } }
	}
	require.NoError(t, json.Unmarshal(text, &d))
	names := served(t)
	taken := map[[2]int]string{}
	var queries []string
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			queries = append(queries, target.Expr)
		}
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				require.Empty(t, taken[at], p.Title)
				taken[at] = p.Title
			}
		}
	}
	for _, v := range d.Templating.List {
		queries = append(queries, v.Query)
	}
	require.Greater(t, len(queries), 10)
	for _, q := range queries {
		for _, name := range metricName.FindAllString(q, -1) {
			require.True(t, names[name], "%s in %s", name, q)
		}
	}
}

// TestManifest: the agent accepts the configuration in the manifest, the files that it names are mounted, and the example of a
// web configuration is one.
func TestManifest(t *testing.T) {
	text, err := os.ReadFile(plainManifest)
	require.NoError(t, err)
	kinds := map[string]int{}
	for kind := range objects(t, text) {
		kinds[kind]++
	}
	config := agentConfig(t, objects(t, text))
	require.Equal(t, map[string]int{
		"Namespace": 1, "ServiceAccount": 1, "ClusterRole": 1, "ClusterRoleBinding": 1, "ConfigMap": 1, "DaemonSet": 1,
	}, kinds)
	c, err := ParseConfig([]byte(config))
	require.NoError(t, err)
	require.True(t, c.Kubernetes.Names)
	for _, path := range []string{c.CacheDir, filepath.Dir(c.WebConfigFile)} {
		require.True(t, strings.Contains(string(text), "mountPath: "+path+"\n"), path)
	}
	require.NoError(t, web.Validate("../deploy/kubernetes/web.yaml"))
}

// TestDefaults: deploy/agent-defaults.yaml has the defaults, and its examples can be read.
func TestDefaults(t *testing.T) {
	text, err := os.ReadFile("../deploy/agent-defaults.yaml")
	require.NoError(t, err)
	written, err := ParseConfig(text)
	require.NoError(t, err)
	defaults, err := ParseConfig(nil)
	require.NoError(t, err)
	require.Equal(t, values(t, defaults), values(t, written))
	_, examples, found := strings.Cut(string(text), "# push:")
	require.True(t, found)
	c, err := ParseConfig([]byte(strings.ReplaceAll("push:"+examples, "\n# ", "\n")))
	require.NoError(t, err)
	require.Len(t, c.Push, 3)
}

// values returns a configuration as text, in which nil and empty are equal.
func values(t *testing.T, c *Config) string {
	t.Helper()
	out, err := yaml.Marshal(c)
	require.NoError(t, err)
	return string(out)
}
