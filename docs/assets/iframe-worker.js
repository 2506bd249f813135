// A browser starts no Worker for a page that it has opened from a file, and the site's search is one. There a frame
// of the page's own runs the worker's script instead, on the page's thread. zensical's offline plugin would fetch
// such a script from the network.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.frame = frame
      const inside = frame.contentWindow
      inside.postMessage = data => {
        const event = new MessageEvent("message", { data })
        this.dispatchEvent(event)
        if (this.onmessage) this.onmessage(event)
      }
      inside.importScripts = (...urls) =>
        urls.reduce((before, each) => before.then(() => load(inside.document, each)), Promise.resolve())
      this.ready = load(inside.document, url)
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }
    terminate() {
      this.frame.remove()
    }
  }
  const load = (page, url) => new Promise((done, failed) => {
    const script = page.createElement("script")
    script.src = new URL(url, location.href)
    script.onload = done
    script.onerror = failed
    page.body.append(script)
  })
}
