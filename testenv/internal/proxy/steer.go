package proxy

import (
	"io"
	"net/http"

	"sluice.dev/testenv/internal/dashboard"
)

// Steer is the handler by which tests steer the dashboards and see what happened to them.
func Steer(boards *dashboard.Boards) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /dashboards", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{"dashboards": boards.List()})
	})
	mux.HandleFunc("PUT /dashboards/{namespace}/{service}", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, largestBody))
		var steering dashboard.Steering
		if err == nil {
			steering, err = dashboard.ParseSteering(body)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		boards.Steer(steered(r), steering)
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("DELETE /dashboards/{namespace}/{service}", func(w http.ResponseWriter, r *http.Request) {
		boards.Release(steered(r))
		w.WriteHeader(http.StatusNoContent)
	})
	return mux
}

func steered(r *http.Request) dashboard.Service {
	return dashboard.Service{Namespace: r.PathValue("namespace"), Name: r.PathValue("service")}
}
