/* What NCCL 2.21 does about its network, without GPUs: it opens a plugin, takes the newest interface that it knows, asks
   for devices, and ends with an error if NCCL_NET names another network. Prints the file and the network. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct net {
  const char *name;
  int (*init)(void *);
  int (*devices)(int *);
};

int ncclGetVersion(int *version) {
  *version = 22105;
  return puts("NCCL version 2.21.5+cuda12.4") < 0;
}

static void *opened(void) {
  const char *wish = getenv("NCCL_NET_PLUGIN");
  return dlopen(wish && *wish ? wish : "libnccl-net.so", RTLD_NOW | RTLD_LOCAL);
}

int ncclCommInitRank(void) {
  static const char *const known[] = {"ncclNetPlugin_v8", "ncclNetPlugin_v7", "ncclNetPlugin_v6", "ncclNetPlugin_v5"};
  struct net socket = {"Socket", NULL, NULL}, *net = NULL;
  const char *wish = getenv("NCCL_NET"), *symbol = "";
  struct link_map *map = NULL;
  int devices = 0;
  void *plugin = opened();
  if (!plugin) printf("NET/Plugin: %s\n", dlerror());
  for (int i = 0; plugin && !net && i < 4; i++) net = dlsym(plugin, symbol = known[i]);
  if (net && (net->init(NULL) || net->devices(&devices) || !devices)) net = NULL;
  if (wish && strcasecmp(wish, net ? net->name : socket.name)) {
    printf("NCCL WARN Error: network %s not found.\n", wish);
    return 5;
  }
  if (net && !dlinfo(plugin, RTLD_DI_LINKMAP, &map)) printf("loaded %s by %s\n", map->l_name, symbol);
  printf("Using network %s\n", (net ? net : &socket)->name);
  fflush(stdout);
  return 0;
}
