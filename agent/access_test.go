// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/agent/kube"
	"github.com/gputrace/gputrace/process"
)

// tokensOf writes the tokens of a test, and returns the configuration that names them.
func tokensOf(t *testing.T) (dir, config string) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range []string{"admin", "red", "blue", "none"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(tokenOf(name)+"\n"), 0o600))
	}
	return dir, fmt.Sprintf(`access:
- {token_file: %[1]s/admin, namespaces: ["*"]}
- {token_file: %[1]s/red, namespaces: [red]}
- {token_file: %[1]s/blue, namespaces: [blue, green]}
- {token_file: %[1]s/none, namespaces: [other]}
kubernetes: {names: true, api_server: "http://127.0.0.1:1", node: n1}
`, dir)
}

func tokenOf(name string) string { return name + strings.Repeat("-0123456789", 3) }

// twoPods is an agent with a process in each of the namespaces red and blue, one in none, and a failed request of each.
func twoPods(t *testing.T) (r *running, dir string) {
	dir, config := tokensOf(t)
	// A label that a program or a rule chooses must not matter.
	r = start(t, config+"labels: {namespace: red}\nrecordings: {dir: "+filepath.Join(t.TempDir(), "ring")+"}\n")
	s := <-r.sources
	for i, name := range []string{"red", "blue", "host"} {
		p := &madeTarget{pid: 1<<30 + i, file: "/app/" + name + "_secret.py"}
		p.about = process.About{Name: name + "_secret", Environ: []string{"SLURM_JOB_ID=" + name + "_secret"}}
		s.arrive(p, 3)
		admin(r, "/metrics", fmt.Sprintf("gputrace_agent_targets %d\n", i+1))
		if target := r.all()[i]; name != "host" {
			target.setNamespace(name)
		}
		s.refuse(p, 1<<30, 12)
		admin(r, "/api/v1/failures", name+"_secret.py:12")
	}
	admin(r, "/metrics", `line="host_secret.py:1 train"`)
	admin(r, "/api/v1/recordings", `"namespace": "blue"`)
	return r, dir
}

// admin waits until an answer to a token for everything has a text.
func admin(r *running, path, text string) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		_, body := r.ask(path, "Bearer "+tokenOf("admin"))
		return strings.Contains(body, text)
	}, 20*time.Second, 5*time.Millisecond, "%s has no %s", path, text)
}

// ask asks with headers Authorization.
func (r *running) ask(path string, authorization ...string) (*http.Response, string) {
	r.t.Helper()
	request, err := http.NewRequest(http.MethodGet, r.url+path, nil)
	require.NoError(r.t, err)
	request.Header["Authorization"] = authorization
	response, err := http.DefaultTransport.RoundTrip(request) // a redirect is an answer
	require.NoError(r.t, err)
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	require.NoError(r.t, err)
	if p, err := profile.ParseData(b); err == nil { // compressed, where a word would not be found
		b = []byte(p.String())
	}
	return response, string(b)
}

// TestAccess: on every path a token shows the processes of its namespaces and nothing of others, whatever a request asks for.
func TestAccess(t *testing.T) {
	r, _ := twoPods(t)
	shown := map[string]int{}
	for path := range r.routes() {
		path = strings.TrimSuffix(path, "{$}")
		if strings.HasPrefix(path, "/recordings/") {
			continue // TestRecordingsAccess
		}
		if strings.HasPrefix(path, "/-/") {
			response, body := r.ask(path)
			require.Equal(t, http.StatusOK, response.StatusCode)
			require.NotContains(t, body, "secret")
			continue
		}
		response, _ := r.ask(path)
		require.Equal(t, http.StatusUnauthorized, response.StatusCode, path)
		for _, query := range []string{
			"", "?pid=1073741824", "?pid=1073741825", "?pid=1073741826", "?namespace=red", "?namespace=blue", "?job_id=red_secret", "?seconds=1",
			"?job_id=red_secret&job_id=blue_secret&job_id=host_secret", "?pid=1073741824&pid=1073741825&pid=1073741826",
			"?token=" + tokenOf("admin"), "?access_token=" + tokenOf("admin") + "&namespaces=*",
		} {
			if query == "?seconds=1" && path != "/debug/pprof/gpu_allocs" {
				continue
			}
			for name, hidden := range map[string][]string{"red": {"blue", "host"}, "blue": {"red", "host"}, "none": {"red", "blue", "host"}} {
				response, body := r.ask(path+query, "Bearer "+tokenOf(name))
				require.Equal(t, "no-store", response.Header.Get("Cache-Control"))
				for _, other := range hidden {
					// The label namespace is red for all, by the configuration: only the words of the programs matter.
					require.NotContains(t, body, other+"_secret", "%s%s for %s", path, query, name)
				}
				require.NotContains(t, body, "gputrace_agent_", "%s%s for %s", path, query, name)
				require.NotContains(t, body, "go_goroutines")
				if strings.Contains(body, name+"_secret") {
					shown[path+" "+name]++
				}
			}
		}
		for _, name := range []string{"red", "blue"} {
			require.NotZero(t, shown[path+" "+name], "%s shows a token its own process", path)
		}
	}
	_, all := r.ask("/metrics", "Bearer "+tokenOf("admin"))
	for _, name := range []string{"red_secret", "blue_secret", "host_secret", "gputrace_agent_up"} {
		require.Contains(t, all, name)
	}
}

// TestAccessHides: a process of another namespace and one that does not exist have the same answer.
func TestAccessHides(t *testing.T) {
	r, _ := twoPods(t)
	for _, path := range []string{
		"/target", "/debug/pprof/gpu_heap", "/debug/pprof/gpu_peak", "/debug/pprof/gpu_allocs", "/metrics", "/sd", "/api/v1/targets",
	} {
		other, body := r.ask(path+"?pid=1073741825", "Bearer "+tokenOf("red"))
		absent, want := r.ask(path+"?pid=1", "Bearer "+tokenOf("red"))
		require.Equal(t, absent.StatusCode, other.StatusCode, path)
		require.Equal(t, want, body, path)
	}
}

// TestHostileAuthorization: nothing but exactly one header with a valid token opens a path.
func TestHostileAuthorization(t *testing.T) {
	r, _ := twoPods(t)
	token := tokenOf("red")
	for _, headers := range [][]string{
		nil, {""}, {"Bearer"}, {"Bearer "}, {"Bearer  " + token}, {token}, {"Basic " + token}, {"Bearer " + token[1:]}, {"Bearer " + token + "0"},
		{"Bearer " + strings.ToUpper(token)}, {"Bearer " + token + ", Bearer " + token}, {"Bearer " + token, "Bearer " + token}, {"Bearer *"},
		{"Bearer " + strings.Repeat("a", 50_000)}, {"Bearer \xff\xfe"}, {"Bearer\t" + token}, {"Digest Bearer " + token}, {"Bearer null"},
	} {
		for _, path := range []string{"/metrics", "/", "/nothing"} {
			response, body := r.ask(path, headers...)
			require.Equal(t, http.StatusUnauthorized, response.StatusCode, "%.80q", headers)
			require.Equal(t, "Bearer", response.Header.Get("WWW-Authenticate"))
			require.NotContains(t, body, "secret")
		}
	}
	response, _ := r.ask("/metrics", "bEARER "+token) // RFC 9110, section 11.1: the scheme's case does not matter
	require.Equal(t, http.StatusOK, response.StatusCode)
	for _, request := range []string{
		"GET /-/ready/../../metrics", "GET //metrics", "GET /-/healthy/..%2f..%2fmetrics", "GET /%2d/ready/../metrics", "GET /-/ready;/metrics",
		"GET http://x/metrics", "HEAD /metrics", "POST /metrics", "CONNECT /metrics", "OPTIONS *", "GET /-/ready?/../metrics /metrics",
		"GET /metrics#/-/ready",
	} {
		status, body := raw(t, strings.TrimPrefix(r.url, "http://"), request)
		require.Contains(t, []int{http.StatusUnauthorized, http.StatusBadRequest, http.StatusNotFound, http.StatusOK}, status, request)
		require.NotContains(t, body, "gputrace_", request)
		require.NotContains(t, body, "secret", request)
	}
}

// raw sends a line of a request as it is, and returns the answer.
func raw(t *testing.T, address, request string) (int, string) {
	t.Helper()
	c, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(10*time.Second)))
	const headers = "Host: a\r\nX-Original-URL: /-/ready\r\nX-Forwarded-User: admin\r\nConnection: close\r\n\r\n"
	_, err = fmt.Fprintf(c, "%s HTTP/1.1\r\n%s", request, headers)
	require.NoError(t, err)
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err, request)
	defer response.Body.Close()
	b, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(b)
}

// TestTokensAreReplaced: a token that is replaced, shortened or removed is not valid any more, while the others are.
func TestTokensAreReplaced(t *testing.T) {
	dir, text := tokensOf(t)
	c, err := ParseConfig([]byte(text))
	require.NoError(t, err)
	x, err := newAccess(c.Access, quiet())
	require.NoError(t, err)
	now := time.Now()
	x.now = func() time.Time { return now }
	ask := func(token string) *grant {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		return x.grant(r)
	}
	old, file := tokenOf("red"), filepath.Join(dir, "red")
	require.Equal(t, []string{"red"}, ask(old).namespaces)
	renewed := strings.Repeat("n", minToken)
	for _, c := range []struct {
		text string
		want *grant // of the new token
	}{{renewed, ask(old)}, {"short", nil}, {"", nil}, {tokenOf("admin"), everything}} {
		require.NoError(t, os.WriteFile(file, []byte(c.text), 0o600))
		now = now.Add(tokensEvery)
		require.Nil(t, ask(old))
		got := ask(c.text)
		require.Equal(t, c.want == nil, got == nil, c.text)
		if got != nil {
			require.Equal(t, c.want.all, got.all, "a token that two files have is the first one's")
		}
	}
	require.NoError(t, os.Remove(file))
	now = now.Add(tokensEvery)
	require.Nil(t, ask(""))
	require.True(t, ask(tokenOf("admin")).all)
	past := (&Agent{access: x}).grantOf(httptest.NewRequest(http.MethodGet, "/", nil))
	require.Equal(t, nothing, past, "a request that did not pass authorize sees nothing")
}

// TestAccessConfig: what would open too much, or nothing, is refused before the agent starts.
func TestAccessConfig(t *testing.T) {
	for text, want := range map[string]string{
		"access: [{namespaces: ['*']}]":                              "token_file is missing",
		"access: [{token_file: f}]":                                  "name each namespace",
		"access: [{token_file: f, namespaces: ['']}]":                "name each namespace",
		"access: [{token_file: f, namespaces: [a]}]":                 "kubernetes: {names: true}",
		"access: [{token_file: f, namespaces: ['*'], all: 1}]":       "all",
		"access: [{token_file: f, namespace: a}]":                    "namespace",
		"listen: ':1'\naccess: [{token_file: f, namespaces: ['*']}]": "web_config_file for TLS",
	} {
		_, err := ParseConfig([]byte(text))
		require.ErrorContains(t, err, want, text)
	}
	dir := t.TempDir()
	write := func(name, text string) string {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		return filepath.Join(dir, name)
	}
	one, short := write("one", tokenOf("one")), write("short", strings.Repeat("x", minToken-1))
	for _, c := range []struct {
		files []string
		want  string
	}{{[]string{short}, "at least 16"}, {[]string{one, one}, "in another file too"}, {[]string{dir + "/none"}, "no such file"}} {
		config := &Config{}
		for _, f := range c.files {
			config.Access = append(config.Access, AccessConfig{f, []string{"*"}})
		}
		_, err := newAccess(config.Access, quiet())
		require.ErrorContains(t, err, c.want)
		require.NotContains(t, err.Error(), tokenOf("one"))
	}
	config := &Config{Access: []AccessConfig{{one, []string{"*"}}}, WebConfigFile: "../deploy/kubernetes/web.yaml"}
	require.ErrorContains(t, config.checkWeb(), "exclude each other")
	config.WebConfigFile = write("tls", "tls_server_config: {cert_file: a, key_file: b}\n")
	require.NoError(t, config.checkWeb())
	config.Access, config.WebConfigFile = nil, "../deploy/kubernetes/web.yaml"
	require.NoError(t, config.checkWeb())
}

// TestNamespaceOfPod: the namespace comes from the control group and the API server, and stays what it was.
func TestNamespaceOfPod(t *testing.T) {
	const uid = "0f3b1f2e-8a6d-4c57-9a53-2f6f1f5f7c11"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") != "" {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		fmt.Fprintf(w, `{"metadata":{"resourceVersion":"1"},"items":[{"metadata":{"uid":%q,"name":"p","namespace":"red"},
			"spec":{"nodeName":"n1"}}]}`, uid)
	}))
	t.Cleanup(server.CloseClientConnections)
	names, err := kube.New(&kube.Options{Server: server.URL, Node: "n1", Warn: func(error) {}})
	require.NoError(t, err)
	go names.Run(t.Context())
	l := &labeler{config: &Config{}, names: names}
	inside := "0::/kubepods/burstable/pod" + uid + "/abc"
	require.Eventually(t, func() bool { return l.namespace(inside) == "red" }, 10*time.Second, time.Millisecond)
	for _, cgroups := range []string{
		"", "0::/", "0::/system.slice/pod" + uid[1:], "0::/kubepods/pod11111111-2222-3333-4444-555555555555/kubepods/pod" + uid,
		"0::/user.slice/user-1.slice/kubepods/pod" + uid,
	} {
		require.Empty(t, l.namespace(cgroups), cgroups)
	}
	require.Empty(t, (&labeler{config: &Config{}}).namespace(inside))
	var one target
	one.setNamespace("")
	one.setNamespace("red")
	one.setNamespace("blue")
	require.Equal(t, "red", one.namespace())
	require.False(t, nothing.sees(""))
	require.False(t, (&grant{namespaces: []string{"", "red"}}).sees(""))
}
