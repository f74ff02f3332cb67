console.log('site')
