// The example plugin of the kubelet's own tree, as a process.
//
// The plugin, its server and its services are those of the published package, unchanged. This program only gives them
// a name and a socket, and says on its standard output what happens:
//
//	serving SOCKET
//	told REGISTERED ERROR     a registration status that the plugin received; ERROR is quoted
//	stopped                   after SIGTERM or SIGINT; the socket is removed
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"reflect"
	"strings"
	"syscall"
	"unsafe"

	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager/pluginwatcher"
)

func main() {
	socket := flag.String("socket", "", "path of the plugin's socket")
	name := flag.String("name", "example", "name of the plugin")
	pluginType := flag.String("type", registerapi.DevicePlugin, "type of the plugin")
	versions := flag.String("versions", "v1beta1,v1beta2", "versions that the plugin supports")
	flag.Parse()

	ended, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	plugin := pluginwatcher.NewTestExamplePlugin(*name, *pluginType, *socket, strings.Split(*versions, ",")...)
	told := statuses(plugin)
	if err := plugin.Serve(context.Background(), "v1beta1", "v1beta2"); err != nil {
		fail(err)
	}
	fmt.Println("serving", *socket)
	for {
		select {
		case status := <-told:
			fmt.Printf("told %t %q\n", status.PluginRegistered, status.Error)
		case <-ended.Done():
			if err := plugin.Stop(context.Background()); err != nil {
				fail(err)
			}
			fmt.Println("stopped")
			return
		}
	}
}

// statuses gives the channel to which the example plugin sends what it is told. The plugin's field is private, and the plugin
// answers no notification before somebody has received it, so a program outside of the package has no other way.
func statuses(plugin any) chan registerapi.RegistrationStatus {
	field := reflect.ValueOf(plugin).Elem().FieldByName("registrationStatus")
	return reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem().Interface().(chan registerapi.RegistrationStatus)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
