// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// killAndStart kills the agent and starts it again, with tokens: the returned one asks with the token for all processes.
func (a *nodeAgent) killAndStart(t *testing.T, dir, config string) *nodeAgent {
	t.Helper()
	require.NoError(t, a.cmd.Process.Kill())
	<-a.exited
	config += "access:\n"
	for name, namespace := range map[string]string{"admin": "'*'", "ml": "ml", "other": "other"} {
		file := filepath.Join(dir, name+".token")
		require.NoError(t, os.WriteFile(file, []byte(agentToken(name)), 0o600))
		config += "- {token_file: " + file + ", namespaces: [" + namespace + "]}\n"
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "agent.yaml"), []byte(config), 0o644))
	next := startAgent(t, dir, a.address)
	next.token = agentToken("admin")
	return next
}

func agentToken(name string) string { return strings.Repeat(name, 8) }

// checkAccess asks for the job in the pod ml/train-0 with the token of its namespace, with another one and with none.
func (a *nodeAgent) checkAccess(t *testing.T) {
	own := &nodeAgent{address: a.address, token: agentToken("ml")}
	other := &nodeAgent{address: a.address, token: agentToken("other")}
	nobody := &nodeAgent{address: a.address}
	require.NotContains(t, own.until(t, "/metrics", `gputrace_live_bytes\{[^}]*pod="train-0"`), "gputrace_agent_")
	for _, path := range []string{"/metrics", "/api/v1/targets", "/sd", "/debug/pprof/gpu_heap", "/target?pod=train-0", "/"} {
		require.NotContains(t, other.get(path), "train-0", path)
		require.Contains(t, nobody.get(path), "a valid bearer token is needed", path)
	}
	require.Contains(t, own.get("/api/v1/targets"), "train-0")
	require.Contains(t, other.get("/debug/pprof/gpu_heap"), "no traced process has these labels")
	require.Contains(t, nobody.get("/-/ready"), "ready")
}
