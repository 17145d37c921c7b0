package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
)

// backUpEtcd copies the data of etcd, which stops for that moment; the API server waits for it.
func (e *Environment) backUpEtcd(ctx context.Context) error {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	for i, running := range e.processes {
		if running.name != "etcd" {
			continue
		}
		running.stop(stopWithin)
		if err := os.RemoveAll(e.layout.etcdBackup()); err != nil {
			return err
		}
		if err := os.CopyFS(e.layout.etcdBackup(), os.DirFS(e.layout.etcd())); err != nil {
			return fmt.Errorf("copy the data of etcd: %w", err)
		}
		started, err := e.run("etcd", e.plane.etcdArgs())
		if err != nil {
			return err
		}
		// It keeps its place in the order: it stops after all that need it.
		e.processes = e.processes[:len(e.processes)-1]
		e.processes[i] = started
		return e.awaitAny(ctx, "the API server to be ready", e.isAPIReady)
	}
	return errors.New("etcd is not running")
}

// restoreEtcd puts the data of the last backup back, and starts all components again.
func (e *Environment) restoreEtcd(ctx context.Context) error {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if _, err := os.Stat(e.layout.etcdBackup()); err != nil {
		return fmt.Errorf("there is no backup: %w", err)
	}
	e.stopProcesses()
	if err := os.RemoveAll(e.layout.etcd()); err != nil {
		return err
	}
	if err := os.CopyFS(e.layout.etcd(), os.DirFS(e.layout.etcdBackup())); err != nil {
		return fmt.Errorf("copy the backup: %w", err)
	}
	if err := e.startAPI(ctx); err != nil {
		return err
	}
	if !e.options.Controllers {
		return nil
	}
	if err := e.startControllers(ctx); err != nil {
		return err
	}
	return e.startNodes(ctx)
}

// answer runs an action for a request and reports whether it has failed.
func answer(action func(context.Context) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := action(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
}
