package supervisor

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
)

// writeKubeconfig writes a kubeconfig (in JSON, which is YAML too) for one server, which presents a certificate that ca
// signed, and one bearer token.
func writeKubeconfig(path, server, token string, ca []byte) error {
	cluster := map[string]any{
		"server": server, "certificate-authority-data": base64.StdEncoding.EncodeToString(ca),
	}
	config := map[string]any{
		"apiVersion":      "v1",
		"kind":            "Config",
		"clusters":        []any{map[string]any{"name": "testenv", "cluster": cluster}},
		"users":           []any{map[string]any{"name": "admin", "user": map[string]any{"token": token}}},
		"contexts":        []any{map[string]any{"name": "testenv", "context": map[string]any{"cluster": "testenv", "user": "admin"}}},
		"current-context": "testenv",
	}
	text, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the kubeconfig %s: %w", path, err)
	}
	return os.WriteFile(path, append(text, '\n'), 0o600)
}
