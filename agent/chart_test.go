// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

const (
	plainManifest = "../deploy/kubernetes/agent.yaml"
	chart         = "../deploy/helm/gputrace"
)

// object is an object of Kubernetes as it is in a file.
type object = map[string]any

// objects are the objects of a file by their kind. Each kind is there once.
func objects(t *testing.T, text []byte) map[string]object {
	t.Helper()
	out := map[string]object{}
	for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var o object
		err := d.Decode(&o)
		if errors.Is(err, io.EOF) {
			return out
		}
		require.NoError(t, err)
		if o == nil {
			continue
		}
		kind := o["kind"].(string)
		require.NotContains(t, out, kind)
		out[kind] = o
	}
}

// at is the value at a path of an object.
func at(t *testing.T, o object, path ...string) any {
	t.Helper()
	var v any = o
	for _, name := range path {
		if list, ok := v.([]any); ok {
			require.Len(t, list, 1, name)
			v = list[0]
		}
		inner, ok := v.(object)
		require.True(t, ok, "%s in %v", name, path)
		v = inner[name]
	}
	return v
}

// agentConfig is the agent's configuration in a manifest.
func agentConfig(t *testing.T, all map[string]object) string {
	t.Helper()
	return at(t, all["ConfigMap"], "data", "agent.yaml").(string)
}

// helmLabels are what Helm's conventions add to labels and annotations.
var helmLabels = []string{"app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "helm.sh/chart", "checksum/config"}

// withoutHelm removes what Helm's conventions add, and maps that are empty then.
func withoutHelm(v any) any {
	switch v := v.(type) {
	case object:
		for name, inner := range v {
			if inner = withoutHelm(inner); inner == nil || slices.Contains(helmLabels, name) {
				delete(v, name)
			}
		}
		if len(v) == 0 {
			return nil
		}
	case []any:
		for i := range v {
			v[i] = withoutHelm(v[i])
		}
	}
	return v
}

// asData parses the configuration in a manifest, so that its order and comments do not matter.
func asData(t *testing.T, all map[string]object) {
	t.Helper()
	var data object
	require.NoError(t, yaml.Unmarshal([]byte(agentConfig(t, all)), &data))
	all["ConfigMap"]["data"] = object{"agent.yaml": data}
}

// helm runs the Helm that testdata/setup.sh builds.
func helm(t *testing.T, arguments ...string) ([]byte, error) {
	t.Helper()
	out, err := exec.Command("../testdata/setup.sh", "--print", "helm").Output()
	require.NoError(t, err)
	cmd := exec.Command(strings.TrimSpace(string(out)), arguments...)
	home := t.TempDir() // nothing of the user's Helm matters
	cmd.Env = append(os.Environ(), "HELM_CONFIG_HOME="+home, "HELM_CACHE_HOME="+home, "HELM_DATA_HOME="+home, "KUBECONFIG="+home+"/none")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if out, err = cmd.Output(); err != nil {
		return nil, errors.New(string(out) + stderr.String())
	}
	return out, nil
}

// render renders the chart as it is installed by the command in the guide, with some values.
func render(t *testing.T, values ...string) (map[string]object, error) {
	t.Helper()
	arguments := []string{"template", "gputrace", chart, "--namespace", "gputrace", "--kube-version", "1.34.0"}
	for _, v := range values {
		arguments = append(arguments, "--set-json", v)
	}
	out, err := helm(t, arguments...)
	if err != nil {
		return nil, err
	}
	return objects(t, out), nil
}

// TestChart: the chart renders the plain manifest, but for the namespace, which Helm makes, and what Helm's conventions add.
func TestChart(t *testing.T) {
	out, err := helm(t, "lint", "--strict", chart)
	require.NoError(t, err)
	require.Contains(t, string(out), "0 chart(s) failed")
	text, err := os.ReadFile(plainManifest)
	require.NoError(t, err)
	want := objects(t, text)
	delete(want, "Namespace")
	got, err := render(t)
	require.NoError(t, err)
	container := []string{"spec", "template", "spec", "containers", "securityContext"}
	require.Equal(t, at(t, want["DaemonSet"], container...), at(t, got["DaemonSet"], container...), "the same rights")
	asData(t, want)
	asData(t, got)
	require.Len(t, got, len(want))
	for kind, o := range want {
		require.Equal(t, o, withoutHelm(got[kind]), kind)
	}
}

// TestChartValues: what a value changes, and nothing else.
func TestChartValues(t *testing.T) {
	capabilities := []string{"spec", "template", "spec", "containers", "securityContext", "capabilities", "add"}
	plain, err := render(t)
	require.NoError(t, err)
	got, err := render(t, "sysAdmin=true")
	require.NoError(t, err)
	require.Equal(t, append(at(t, plain["DaemonSet"], capabilities...).([]any), "SYS_ADMIN"), at(t, got["DaemonSet"], capabilities...))

	const monitor = `serviceMonitor={"enabled":true,"interval":"30s","basicAuth":{"username":{"name":"s","key":"u"}}}`
	got, err = render(t, monitor, `config.listen="[::]:9500"`)
	require.NoError(t, err)
	selector := at(t, got["ServiceMonitor"], "spec", "selector", "matchLabels").(object)
	require.Equal(t, at(t, got["DaemonSet"], "spec", "selector", "matchLabels"), any(selector))
	for name, value := range selector {
		require.Equal(t, value, at(t, got["Service"], "metadata", "labels", name))
		require.Equal(t, value, at(t, got["Service"], "spec", "selector", name))
	}
	require.Equal(t, 9500, at(t, got["Service"], "spec", "ports", "port"))
	require.Equal(t, "30s", at(t, got["ServiceMonitor"], "spec", "endpoints", "interval"))
	require.Equal(t, 9500, at(t, got["DaemonSet"], "spec", "template", "spec", "containers", "ports", "containerPort"))
	sum := []string{"spec", "template", "metadata", "annotations", "checksum/config"}
	require.NotEqual(t, at(t, plain["DaemonSet"], sum...), at(t, got["DaemonSet"], sum...), "pods start anew with a new configuration")

	const push = `config.push=[{"name":"a","format":"pyroscope","url":"http://p","token_file":"/etc/gputrace/push/token"}]`
	got, err = render(t, push, "serviceAccount.create=false", "rbac.create=false",
		`web.secretName=""`, `config.web_config_file=""`, "config.allow_insecure=true",
		`extraVolumes=[{"name":"push","secret":{"secretName":"push"}}]`, `extraVolumeMounts=[{"name":"push","mountPath":"/etc/gputrace/push"}]`)
	require.NoError(t, err)
	require.Len(t, got, 2, "the ConfigMap and the DaemonSet")
	require.Equal(t, "default", at(t, got["DaemonSet"], "spec", "template", "spec", "serviceAccountName"))
	c, err := ParseConfig([]byte(agentConfig(t, got)))
	require.NoError(t, err)
	require.Equal(t, "a", c.Push[0].Name)
	require.Len(t, at(t, got["DaemonSet"], "spec", "template", "spec", "volumes"), 4)

	for value, want := range map[string]string{
		`web.secretName=""`: "name the secret that has web.yaml", "sysAdmin=1": "sysAdmin", "privileged=true": "privileged",
		`config.interwal="1m"`: "interwal", `config.listen="here"`: "listen", "config.listen=null": "listen",
		`image.pullPolicy="Sometimes"`: "pullPolicy",
	} {
		_, err := render(t, value)
		require.ErrorContains(t, err, want, value)
	}
}

// TestChartSchema: the schema has the fields of the agent's configuration, and each value of values.yaml.
func TestChartSchema(t *testing.T) {
	type schema struct {
		Properties           map[string]schema
		AdditionalProperties any
	}
	text, err := os.ReadFile(filepath.Join(chart, "values.schema.json"))
	require.NoError(t, err)
	var s schema
	require.NoError(t, json.Unmarshal(text, &s))
	var fields []string
	for i := range reflect.TypeFor[Config]().NumField() {
		fields = append(fields, reflect.TypeFor[Config]().Field(i).Tag.Get("yaml"))
	}
	var known []string
	for name := range s.Properties["config"].Properties {
		known = append(known, name)
	}
	require.ElementsMatch(t, fields, known)
	text, err = os.ReadFile(filepath.Join(chart, "values.yaml"))
	require.NoError(t, err)
	var values object
	require.NoError(t, yaml.Unmarshal(text, &values))
	values["global"] = object{} // Helm's own
	require.Len(t, s.Properties, len(values))
	for name := range values {
		require.Contains(t, s.Properties, name)
	}
	require.Equal(t, false, s.AdditionalProperties)
}
