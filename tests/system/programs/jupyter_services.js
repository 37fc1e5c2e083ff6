// Runs cells in a kernel of a Jupyter server by @jupyterlab/services, as VS Code does: node FILE, the request on stdin.
//
// {"url", "token", "modules", "cells": [{"code", "interrupt"}], "again"}: a cell is interrupted when it has printed
// `interrupt`, and `again` is run through a second connection. The last line of stdout is the answer, as JSON.
const request = JSON.parse(require('fs').readFileSync(0, 'utf8'));
const load = require('module').createRequire(request.modules + '/package.json');
const WebSocket = load('ws');
const { KernelManager, KernelSpecAPI, ServerConnection, SessionManager } = load('@jupyterlab/services');

async function run(kernel, cell) {
  const future = kernel.requestExecute({ code: cell.code, allow_stdin: false, stop_on_error: false });
  let text = '', error = '';
  future.onIOPub = message => {
    const { content, header } = message;
    if (header.msg_type === 'stream') text += content.text;
    if (header.msg_type === 'execute_result') text += content.data['text/plain'];
    if (header.msg_type === 'error') error = content.ename;
    if (header.msg_type === 'stream' && cell.interrupt && text.includes(cell.interrupt)) {
      cell.interrupt = '';
      kernel.interrupt();
    }
  };
  await future.done;
  return { text, error };
}

async function main() {
  const serverSettings = ServerConnection.makeSettings({
    baseUrl: request.url, token: request.token, appendToken: true, WebSocket,
    init: { cache: 'no-store', credentials: 'same-origin' },
  });
  const specs = await KernelSpecAPI.getSpecs(serverSettings);
  const kernels = new KernelManager({ serverSettings });
  const sessions = new SessionManager({ serverSettings, kernelManager: kernels });
  await sessions.ready;
  const session = await sessions.startNew({ name: 'cells', path: 'cells.ipynb', type: 'notebook', kernel: { name: specs.default } });
  const info = await session.kernel.info;
  const outcomes = [];
  for (const cell of request.cells) outcomes.push(await run(session.kernel, cell));
  // Another window comes to the same kernel.
  const window = new KernelManager({ serverSettings });
  await window.ready;
  const kernel = window.connectTo({ model: session.kernel.model });
  const again = await run(kernel, { code: request.again });
  console.log(JSON.stringify({ language: info.language_info.name, outcomes, again }));
  process.exit(0);
}

main().catch(error => { console.error(error); process.exit(1); });
