// A real kube-apiserver, its etcd and the Job controller in one process that listens on loopback.
//
// Everybody may do everything. There is no scheduler and no kubelet.
package main

import (
	"context"
	"fmt"
	"log"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/pkg/controller/job"
)

// must ends the program by an error.
func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	if len(os.Args) != 5 {
		log.Fatal("usage: kube-apiserver FOLDER PORT ETCD_PORT KEY_FILE")
	}
	folder, port, etcdPort, key := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	store := startEtcd(filepath.Join(folder, "etcd"), etcdPort)
	go runJobs("https://127.0.0.1:" + port)
	policy := filepath.Join(folder, "policy")
	must(os.WriteFile(policy, []byte(everythingTo("system:authenticated")+everythingTo("system:unauthenticated")), 0o600))
	server := app.NewAPIServerCommand()
	server.SetArgs([]string{
		"--etcd-servers=" + store,
		"--bind-address=127.0.0.1",
		"--secure-port=" + port,
		"--cert-dir=" + filepath.Join(folder, "certificates"),
		"--service-cluster-ip-range=10.0.0.0/24",
		"--anonymous-auth=true",
		"--authorization-mode=ABAC",
		"--authorization-policy-file=" + policy,
		"--service-account-issuer=https://tests",
		"--service-account-key-file=" + key,
		"--service-account-signing-key-file=" + key,
		"--disable-admission-plugins=ServiceAccount",
	})
	must(server.Execute())
}

func startEtcd(folder, port string) string {
	client, err := url.Parse("http://127.0.0.1:" + port)
	must(err)
	peer, err := url.Parse("http://127.0.0.1:0")
	must(err)
	config := embed.NewConfig()
	config.Dir = folder
	config.LogLevel = "error"
	config.UnsafeNoFsync = true
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	config.ListenPeerUrls = []url.URL{*peer}
	started, err := embed.StartEtcd(config)
	must(err)
	<-started.Server.ReadyNotify()
	return client.String()
}

// runJobs runs the Job controller as soon as the API server answers.
func runJobs(server string) {
	ctx := context.Background()
	client := kubernetes.NewForConfigOrDie(&rest.Config{
		Host:            server,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
		QPS:             100,
		Burst:           200,
	})
	for {
		if _, err := client.Discovery().ServerVersion(); err == nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	all := informers.NewSharedInformerFactory(client, 0)
	controller, err := job.NewController(ctx, all.Core().V1().Pods(), all.Batch().V1().Jobs(), client)
	must(err)
	all.Start(ctx.Done())
	controller.Run(ctx, 2)
}

func everythingTo(group string) string {
	return fmt.Sprintf(`{"apiVersion": "abac.authorization.kubernetes.io/v1beta1", "kind": "Policy", "spec": `+
		`{"group": %q, "namespace": "*", "resource": "*", "apiGroup": "*", "nonResourcePath": "*"}}`+"\n", group)
}
