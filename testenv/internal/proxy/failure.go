package proxy

import (
	"encoding/json"
	"errors"
	"net/http"

	"sluice.dev/testenv/internal/apiclient"
)

// failure is an answer as the API server gives it when it cannot serve a request.
type failure struct {
	code            int
	reason, message string
}

// failureOf hands on what the API server answered.
func failureOf(err error) *failure {
	var status *apiclient.StatusError
	if !errors.As(err, &status) {
		return &failure{http.StatusBadGateway, "InternalError", err.Error()}
	}
	return &failure{status.Code, reasonOf(status.Code), status.Message}
}

func reasonOf(code int) string {
	switch code {
	case http.StatusUnauthorized:
		return "Unauthorized"
	case http.StatusForbidden:
		return "Forbidden"
	case http.StatusNotFound:
		return "NotFound"
	default:
		return "InternalError"
	}
}

func unavailable(message string) *failure {
	return &failure{http.StatusServiceUnavailable, "ServiceUnavailable", message}
}

func (f *failure) write(w http.ResponseWriter) {
	writeJSON(w, f.code, map[string]any{
		"kind": "Status", "apiVersion": "v1", "metadata": map[string]any{},
		"status": "Failure", "message": f.message, "reason": f.reason, "code": f.code,
	})
}

func writeJSON(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	// The caller may have disconnected.
	_ = json.NewEncoder(w).Encode(body)
}
